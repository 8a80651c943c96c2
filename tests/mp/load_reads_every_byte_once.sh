#!/usr/bin/env bash
# Loading reads every byte of a checkpoint from storage once, whatever layouts wrote it and read it; initial values are
# computed only if nothing is loaded; a checkpoint found damaged on loading is skipped.
#   load_reads_every_byte_once.sh SOURCE_FOLDER PATH_OF_trireme    trireme is built with tests/storage/points.cpp
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, eval_batches: 0, sample_tokens: 0, device: cpu}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 32}
data: {sources: [text], global_batch: 8, micro_batch: 1, tokenizer: bytes}
YAML
make_text

layouts=(
  "1 parallel.zero=0"
  "2 parallel.dp=2 parallel.zero=2 precision.compute=bf16"
  "4 parallel.tp=4"
  "4 parallel.pp=4"
  "8 parallel.tp=2 parallel.dp=2 parallel.pp=2 parallel.zero=1"
  "8 parallel.tp=2 parallel.dp=2 parallel.pp=2 parallel.zero=0 parallel.chunks=2 parallel.schedule=interleaved"
)
echo "the bytes read equal the bytes of the checkpoint, from one layout to another"
# Each start loads what the one before it saved; every layout follows and precedes at least two others. LoadPlan's tests
# compute the shares of more pairs.
steps=0 from=''
for to in 0 1 2 3 4 5 0 3 1 4 2 5 3 0; do
  read -ra settings <<<"${layouts[to]}"
  steps=$((steps + 1))
  train 0 run "${settings[0]}" "run.steps=$steps" "${settings[@]:1}"
  if [[ -z $from ]]; then
    has "start values"
  else
    lacks "start values"
    figures=$(sed -nE "s/.*resumed from .*: step $((steps - 1)), ([0-9]+) of ([0-9]+) bytes read.*/\1 \2/p" <<<"$output")
    read -r got stored <<<"$figures"
    [[ -n $figures && $got -eq $stored ]] || fail "from '$from' to '${layouts[to]}': '$figures'"
  fi
  from=${layouts[to]}
done

echo "a checkpoint with damaged contents is skipped and named; without another one, the run does not start"
rm -rf run && train 0 run 4 run.steps=2 parallel.tp=2 parallel.pp=2 checkpoint.every=1
offset=$(($(stat -c %s run/checkpoints/step_00000002/shard_00001.h5) / 2))
printf 'xyzw' | dd of=run/checkpoints/step_00000002/shard_00001.h5 bs=1 seek=$offset conv=notrunc status=none
cp -r run alone && rm -r alone/checkpoints/step_00000001
train 0 run 4 run.steps=3 parallel.tp=2 parallel.pp=2
has "checkpoint skipped"
has "shard_00001.h5"
has "resumed from run/checkpoints/step_00000001"
train 3 alone 4 run.steps=3 parallel.tp=2 parallel.pp=2
has "checkpoint skipped"
has "no checkpoint could be read"
lacks "start values"

echo "a checkpoint of another version is not passed over: an older one would lose its steps, and replace it"
rm -rf run && train 0 run 1 run.steps=2 checkpoint.every=1
manifest=run/checkpoints/step_00000002/manifest.json
sed -i 's/"format": 1/"format": 2/' $manifest
run 3 "$trireme" checkpoint verify run/checkpoints/step_00000002
seal=$(sed -nE 's/.*its text is ([0-9a-f]{16}).*/\1/p' <<<"$output")
sed -i -E "0,/\"checksum\"/s/\"checksum\": \"[0-9a-f]+\"/\"checksum\": \"$seal\"/" $manifest
cp $manifest before
train 3 run 1 run.steps=3
has "the format is 2, but this program reads 1, because another version of trireme wrote it; use that version, or move \
run/checkpoints/step_00000002 to another folder to use an older checkpoint"
cmp -s before $manifest || fail "the checkpoint was replaced"
# Nor is an older model used in its place, unless the command names it.
run 3 "$trireme" eval run --data text --batches 1
has ", or name the folder of an older one in this command (trireme checkpoint list run/checkpoints)"
run 3 "$trireme" generate run --prompt 1 --tokens 1
has "the format is 2"
run 3 "$trireme" checkpoint export run exported
has "the format is 2"
run 0 "$trireme" eval run/checkpoints/step_00000001 --data text --batches 1
mv run/checkpoints/step_00000002 elsewhere
train 0 run 1 run.steps=3
has "resumed from run/checkpoints/step_00000001"

echo "only one rank lists the folder, reads the manifest and finds the files; the others open only what they read"
rm -rf start run
train 0 start 8 run.steps=2 parallel.tp=2 parallel.dp=2 parallel.pp=2 parallel.zero=1 checkpoint.every=1
# reads_of RANK PATTERN: prints how many of that rank's calls match.
reads_of() { grep -c -e "$2" "reads.$1"; }
for to in "8 parallel.tp=2 parallel.dp=2 parallel.pp=2 parallel.zero=1" "4 parallel.tp=4"; do
  read -ra settings <<<"$to"
  rm -rf run reads.* && cp -r start run
  # No step is trained, so nothing is saved.
  TRIREME_TEST_STORAGE=$folder/run/checkpoints TRIREME_TEST_STORAGE_READS=$folder/reads \
    train 0 run "${settings[0]}" run.steps=2 "${settings[@]:1}"
  has "resumed from run/checkpoints/step_00000002"
  [[ $(reads_of 0 '^read step_00000002/manifest.json') -eq 2 ]] || fail "'$to': expected one open and one read of the manifest" "$(<reads.0)"
  [[ $(reads_of 0 '^stat step_00000002/') -eq 9 ]] || fail "'$to': expected one stat of each of eight shards and the index" "$(<reads.0)"
  [[ $(reads_of 0 'step_00000001') -eq 0 ]] || fail "an older checkpoint is looked at" "$(<reads.0)"
  for ((rank = 1; rank < settings[0]; ++rank)); do
    [[ $(reads_of "$rank" '^read step_00000002/shard_') -gt 0 ]] || fail "rank $rank read nothing, to '$to'"
    [[ $(reads_of "$rank" '') -eq $(reads_of "$rank" '^read step_00000002/shard_') ]] ||
      fail "rank $rank of '$to' does more than read shards" "$(<"reads.$rank")"
  done
done

echo "eval reads in the same way"
for ranks in 1 4 8; do
  rm -f reads.*
  TRIREME_TEST_STORAGE=$folder/start/checkpoints TRIREME_TEST_STORAGE_READS=$folder/reads \
    run 0 "$mpirun" -n "$ranks" "$trireme" eval start/checkpoints/step_00000002 --data text --batches 1
  [[ $(reads_of 0 '^read step_00000002/manifest.json') -eq 2 ]] || fail "eval: expected one open and one read of the manifest" "$(<reads.0)"
  for ((rank = 1; rank < ranks; ++rank)); do
    [[ $(reads_of "$rank" '') -eq $(reads_of "$rank" '^read step_00000002/shard_') ]] ||
      fail "rank $rank of $ranks of eval does more than read shards" "$(<"reads.$rank")"
  done
done
run 2 "$mpirun" -n 4 "$trireme" eval start --data text --set model.hidden=64 --set checkpoint.accept_changes=model.hidden
has "tensor model/"
has "set model.* as it was in training"

echo "a model that has changed is refused before memory is allocated for it"
rm -rf run && cp -r start run
train 2 run 4 run.steps=3 parallel.tp=2 parallel.pp=2 model.norm_eps=1e-3
has "model.norm_eps"
lacks "memory of rank 0"

echo "if a rank cannot read its part, all ranks skip the checkpoint, and no run starts over"
rm -rf run && cp -r start run
TRIREME_TEST_STORAGE=$folder/run/checkpoints TRIREME_TEST_STORAGE_RULES="2/read/1/fail=EACCES" \
  train 0 run 4 run.steps=3 parallel.tp=2 parallel.pp=2
has "checkpoint skipped: rank 2: run/checkpoints/step_00000002/shard_"
has "Permission denied"
has "resumed from run/checkpoints/step_00000001"
rm -rf run && cp -r start run
TRIREME_TEST_STORAGE=$folder/run/checkpoints TRIREME_TEST_STORAGE_RULES="2/read/1/fail=EACCES+" \
  train 3 run 4 run.steps=3 parallel.tp=2 parallel.pp=2
has "no checkpoint could be read"
lacks "start values"

echo "bench checkpoint measures and leaves no files"
bench() {
  run "$1" "$mpirun" -n 2 "$trireme" bench checkpoint tiny.yaml --dir bench --rounds 1 --json "${@:2}"
  [[ -z $(ls bench) ]] || fail "left behind: $(ls bench)"
}
bench 0 --set parallel.tp=2
for what in snapshot write load verify; do has "\"what\":\"$what\""; done
bench 2 --most-bytes 1000
has "--most-bytes 1000"

finish
