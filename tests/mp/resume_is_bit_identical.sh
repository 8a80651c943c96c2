#!/usr/bin/env bash
# Runs that stop and go on: the same bits on the same layout, rounding on another, signals, failing storage.
#   resume_is_bit_identical.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 12, eval_batches: 0, sample_tokens: 0, device: cpu}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 32}
data: {sources: [text], global_batch: 8, tokenizer: bytes}
lr: {peak: 1e-2, decay_steps: 12}
YAML
make_text

echo "N steps, a stop, N steps: the same bits as 2 N steps"
mesh=(parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.zero=1)
for kind in "parallel.zero=1" "parallel.zero=2 precision.compute=bf16" "parallel.zero=0 model.tie_embeddings=false" \
  "parallel.zero=1 optimizer.name=lamb parallel.chunks=2 parallel.schedule=interleaved data.micro_batch=1"; do
  read -ra settings <<<"$kind"
  rm -rf whole parts
  train 0 whole 8 "${mesh[@]}" "${settings[@]}"
  train 0 parts 8 "${mesh[@]}" "${settings[@]}" run.steps=5
  train 0 parts 8 "${mesh[@]}" "${settings[@]}" checkpoint.every=3
  has "resumed from parts/checkpoints/step_00000005"
  cmp -s <(curve whole) <(curve parts) || fail "$kind: the curves differ" "$(diff <(curve whole) <(curve parts))"
  [[ $(curve parts | wc -l) -eq 12 ]] || fail "$kind: not every step stands in metrics.jsonl once"
done

echo "on another layout: the same curve up to rounding, from the exact next sample"
rm -rf whole parts
train 0 whole 8 "${mesh[@]}"
train 0 start 8 "${mesh[@]}" run.steps=6
for layout in "1 tp=1 pp=1 dp=1 zero=0" "4 tp=1 pp=1 dp=4 zero=2" "4 tp=1 pp=4 dp=1 zero=1" \
  "4 tp=4 pp=1 dp=1 zero=1" "2 tp=1 pp=1 dp=2 zero=0"; do
  read -r ranks tp pp dp zero <<<"$layout"
  rm -rf other && cp -r start other
  train 0 other "$ranks" "parallel.$tp" "parallel.$pp" "parallel.$dp" "parallel.$zero"
  paste -d' ' <(curve whole) <(curve other) | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 2e-5 * $2) bad = 1}
    END {exit bad || NR != 12}' || fail "$layout: the curve differs" "$(paste -d' ' <(curve whole) <(curve other))"
done

echo "a finished run says so"
train 0 whole 8 "${mesh[@]}"
has "the run is complete"

echo "a signal to one rank: all stop after the same step, a checkpoint is saved, status 75; then it goes on"
for signal in TERM USR1 USR2 INT; do
  rm -rf long
  start long 4 run.steps=100000 parallel.tp=2 parallel.pp=2
  until_true steps_done long 3
  rank=$(pid_of 2)
  kill -"$signal" "$rank"
  [[ $signal == INT ]] || kill -"$signal" "$rank" # a second one changes nothing
  end_of long 75
  stopped=$(curve long | tail -1 | cut -d' ' -f1)
  [[ $(cat long/checkpoints/latest) == "$(printf 'step_%08d' "$stopped")" ]] || fail "SIG$signal: no checkpoint of step $stopped"
  train 0 long 4 parallel.tp=2 parallel.pp=2 "run.steps=$((stopped + 2))"
  has "resumed from long/checkpoints/step_$(printf %08d "$stopped")"
done

echo "trireme checkpoint lists, shows, verifies and prunes them"
rm -rf whole
train 0 whole 4 parallel.tp=2 parallel.pp=2 checkpoint.every=2 checkpoint.keep_last=3 checkpoint.keep_every=8 run.steps=12
[[ $(ls whole/checkpoints) == "$(printf '%s\n' checkpoint.lock latest step_00000008 step_00000010 step_00000012)" ]] ||
  fail "keep_last, keep_every" "$(ls whole/checkpoints)"
[[ $(grep -c checkpoint_stall_ms whole/metrics.jsonl) -eq 6 ]] || fail "metrics.jsonl lacks checkpoints"
run 0 "$trireme" checkpoint list whole/checkpoints
[[ $(wc -l <<<"$output") -eq 3 ]] || fail "list" "$output"
run 0 "$trireme" checkpoint inspect whole/checkpoints/step_00000012
has "optimizer/layers/3/"
has "samples: 96"
run 0 "$trireme" checkpoint verify whole/checkpoints/step_00000012
has "all checksums are right"
printf x | dd of=whole/checkpoints/step_00000012/shard_00001.h5 bs=1 seek=5000 conv=notrunc status=none
run 3 "$trireme" checkpoint verify whole/checkpoints/step_00000012
has "shard_00001.h5"
run 0 "$trireme" checkpoint prune whole/checkpoints --keep-last 1
[[ $(ls -d whole/checkpoints/step_*) == whole/checkpoints/step_00000012 ]] || fail "prune" "$(ls whole/checkpoints)"
if command -v h5dump >/dev/null; then
  run 0 h5dump -H -d /model/layers/0/norm1/weight whole/checkpoints/step_00000012/checkpoint.h5
  has "H5T_IEEE_F32LE"
else
  echo "skipped: no h5dump"
fi

echo "a damaged checkpoint is passed over, and named"
rm -rf whole
train 0 whole 4 parallel.tp=2 parallel.pp=2 checkpoint.every=4 run.steps=8
truncate -s -1 whole/checkpoints/step_00000008/shard_00002.h5
train 0 whole 4 parallel.tp=2 parallel.pp=2
has "passed over"
has "shard_00002.h5"
has "resumed from whole/checkpoints/step_00000004"

echo "another model: refused, with the tensor's name"
train 3 whole 4 parallel.tp=2 parallel.pp=2 model.hidden=64 run.steps=20
has "model/"

finish
