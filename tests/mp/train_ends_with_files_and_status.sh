#!/usr/bin/env bash
# Runs the executable like a user: checks exit statuses, messages, files, and memory predicted against memory used.
#   train_ends_with_files_and_status.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 4, eval_batches: 1, sample_tokens: 8}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 32}
data: {sources: [text], global_batch: 8, validation_fraction: 0.1}
parallel: {tp: 2, pp: 2}
lr: {peak: 1e-2}
YAML
make_text
[[ -s text.bin && -s text.idx ]] || fail "data prepare wrote no text.bin, text.idx"

echo "a run trains, evaluates, samples and leaves its files"
run 0 "$mpirun" -n 8 "$trireme" train tiny.yaml
has "validation loss"
has "per byte"
has "sample"
has "mean over 8 ranks"
[[ $output != *"cp 0.0 %"* ]] || fail "the summary lists parts that the step does not have"
[[ $(grep -c '"loss":' runs/tiny/metrics.jsonl) -eq 4 ]] || fail "metrics.jsonl does not have one line per step" "$(cat runs/tiny/metrics.jsonl)"
[[ $(grep -c '"validation_loss":' runs/tiny/metrics.jsonl) -eq 1 ]] || fail "metrics.jsonl lacks the evaluation"
[[ $(grep -vc '"time":[0-9.]*}$' runs/tiny/metrics.jsonl) -eq 0 ]] || fail "metrics.jsonl has lines without their time" "$(cat runs/tiny/metrics.jsonl)"
for head in "trireme $("$trireme" --version | sed -n '1s/^trireme //p')" "command: $trireme train tiny.yaml" "ranks: 0-7 on $(hostname)"; do
  grep -qF "$head" runs/tiny/log.txt || fail "log.txt lacks '$head'" "$(head -n 5 runs/tiny/log.txt)"
done
run_total=$(grep -a -A20 'memory of rank 0' <<<"$output" | awk '$1 == "total" {print $(NF - 1); exit}')

echo "trireme check predicts the run's bytes"
run 0 "$trireme" check tiny.yaml --ranks 8 --verbose
check_total=$(grep -a -A20 'memory of each rank of stage 0' <<<"$output" | awk '$1 == "total" {print $(NF - 1); exit}')
[[ -n $run_total && $run_total == "$check_total" ]] || fail "check predicts $check_total bytes, the run took $run_total"

echo "trireme check opens the data and reports samples, epochs and vocabulary; it refuses what training would refuse, with the same message and status"
head -n 200 text.txt >half.txt
run 0 "$trireme" data prepare --format text --tokenizer bytes --output half half.txt
# By hand: (tokens - 1) / 32 samples, a tenth of them for validation; 4 steps x 8 samples, three quarters of them from
# text.
samples=$((($(stat -c %s text.bin) / 2 - 1) / 32))
validation=$(((samples + 5) / 10))
run 0 "$trireme" check tiny.yaml --ranks 8 --set 'data.sources=[{path: text, weight: 3}, half]' --set model.vocab=300
has "tokenizer bytes, 257 tokens; model.vocab 300, of which 43 are unused"
epochs=$(awk -v n=$((samples - validation)) 'BEGIN {printf "%.3g", 24 / n}')
expected="text $(($(stat -c %s text.bin) / 2)) $((samples - validation)) $validation 75.0 % $epochs"
[[ $(awk '$1 == "text" {$1 = $1; print}' <<<"$output") == "$expected" ]] || fail "check lacks '$expected'" "$output"
run 3 "$trireme" check tiny.yaml --ranks 8 --set 'data.sources=[missing]' --set 'data.validation=[{"name":"v","path":"gone"}]'
has "data.sources: missing.idx"
has "data.validation: gone.idx"
run 0 "$trireme" check tiny.yaml --ranks 8 --set 'data.sources=[missing]' --no-data
run 0 "$trireme" check tiny.yaml --ranks 8 --set 'data.sources=[missing]' --get run.name
run 2 "$trireme" check tiny.yaml --ranks 8 --set 'data.sources=[]'
has "training needs at least one token file"
run 2 "$trireme" check tiny.yaml --ranks 8 --set model.vocab=100
has "set model.vocab: 257"

echo "trireme check reports the attention kernels for a GPU and warns about slow ones"
presets=$source_dir/configs on_paper=(--ranks 1 --no-data --set run.device=cuda --set precision.compute=bf16)
run 0 "$trireme" check "$presets/gpt2_124m.yaml" "${on_paper[@]}" --set parallel.dp=1 --set data.micro_batch=1
has "attention: forward cuDNN, backward cuDNN (model.attention: auto)"
run 0 "$trireme" check "$presets/gpt2_124m.yaml" "${on_paper[@]}" --set parallel.dp=1 --set data.micro_batch=8
has "attention: forward cuDNN, backward FlashAttention kernels (model.attention: auto)"
has "are those of an H200 with cuDNN"
lacks "WARNING: attention"
run 0 "$trireme" check "$presets/gpt2_124m.yaml" "${on_paper[@]}" --set parallel.dp=1 --set data.micro_batch=1 \
  --set model.hidden=780 --set model.ffn_hidden=3120
has "attention: forward scalar kernels, backward scalar kernels"
has "WARNING: attention with head size 65"
run 2 "$trireme" check "$presets/gpt2_124m.yaml" "${on_paper[@]}" --set parallel.dp=1 --set data.micro_batch=1 \
  --set model.hidden=780 --set model.ffn_hidden=3120 --set model.seq_len=65536
has "model.seq_len: 65536 with bf16 and head size 65"

echo "trireme check --get uses the config's own mesh if it is complete"
run 0 "$trireme" check tiny.yaml --ranks 8 --get run.dir --get parallel.dp
[[ $output == $'runs/tiny\n2' ]] || fail "check --get prints '$output'"
run 0 "$trireme" check tiny.yaml --set parallel.dp=3 --set data.global_batch=9 --get parallel.dp
[[ $output == 3 ]] || fail "check --get prints '$output'"
run 2 "$trireme" check tiny.yaml --ranks 8 --get run.dri
has "run.dir"

echo "the run's config.yaml reproduces the run and is not changed; the metrics are appended"
cp runs/tiny/metrics.jsonl first.jsonl
ls -i --full-time runs/tiny/config.yaml >before
rm -r runs/tiny/checkpoints
run 0 "$mpirun" -n 8 "$trireme" train runs/tiny/config.yaml
ls -i --full-time runs/tiny/config.yaml | cmp -s before - || fail "config.yaml was written although it is the input"
head -c "$(stat -c %s first.jsonl)" runs/tiny/metrics.jsonl | cmp -s first.jsonl - || fail "the earlier start's metrics were changed"
tail -n +"$(($(wc -l <first.jsonl) + 1))" runs/tiny/metrics.jsonl >second.jsonl
[[ $(head -n 1 second.jsonl) == '{"restart":1,"step":0,"lost_steps":4,"schema":1,"time":'* ]] || fail "the restart is not marked" "$(cat second.jsonl)"
losses() { grep '"loss"' "$1" | cut -d, -f1-6; }
cmp -s <(losses first.jsonl) <(losses second.jsonl) || fail "losses differ" "$(diff <(losses first.jsonl) <(losses second.jsonl))"

echo "config.yaml does not fix the number of ranks; resolved.yaml contains the decisions of the last start"
grep -qx '  dp: 2' runs/tiny/resolved.yaml && grep -qx '  device: cpu' runs/tiny/resolved.yaml || fail "resolved.yaml leaves something open" "$(cat runs/tiny/resolved.yaml)"
run 0 "$mpirun" -n 4 "$trireme" train runs/tiny/config.yaml --set run.steps=5
grep -qx '  dp: 1' runs/tiny/resolved.yaml || fail "resolved.yaml is not this start's"

echo "an unreadable resolved.yaml: the run continues, and says what the event log lacks"
ln -sfn resolved.yaml runs/tiny/resolved.yaml
run 0 "$mpirun" -n 4 "$trireme" train runs/tiny/config.yaml --set run.steps=6
has "runs/tiny/resolved.yaml: Too many levels of symbolic links; so events.jsonl does not record what this start has changed"
grep -qx '  steps: 6' runs/tiny/resolved.yaml || fail "resolved.yaml is not this start's"

echo "invalid configs give status 2 and each error once, and create nothing"
rm -r runs
run 2 "$mpirun" -n 4 "$trireme" train tiny.yaml --set model.heds=4 --set run.steps=none
has "did you mean model.heads?"
has "2 errors"
[[ $(grep -c 'did you mean model.heads' <<<"$output") -eq 1 ]] || fail "the error is printed more than once" "$output"
run 2 "$mpirun" -n 3 "$trireme" train tiny.yaml
has "3 ranks"
run 2 "$trireme" train nowhere.yaml
has "nowhere.yaml"
alone=("$trireme" train tiny.yaml --set parallel.tp=1 --set parallel.pp=1)
run 2 "${alone[@]}" --set model.vocab=100
has "model.vocab"
"$trireme" data train-tokenizer --vocab 300 --output other.model text.txt >/dev/null 2>&1 || fail "train-tokenizer"
run 2 "${alone[@]}" --set data.tokenizer=other.model --set model.vocab=400
has "was prepared with bytes"
cp text.json text.json.whole
sed -i 's/"fingerprint": "bytes"/"fingerprint": "bpe:0000000000000000"/' text.json
run 2 "${alone[@]}"
has "bytes (bytes) is the one that prepared text, but it was bpe:0000000000000000 then"
mv text.json.whole text.json
run 2 "$trireme" train
run 2 "$trireme" check tiny.yaml
[[ ! -e runs ]] || fail "a refused run left a folder"

echo "invalid data give status 3"
head -c 1000 text.bin >short.bin
cp text.idx short.idx
run 3 "$mpirun" -n 4 "$trireme" train tiny.yaml --set 'data.sources=[short]'
has "short.bin"
run 3 "${alone[@]}" --set 'data.sources=[missing]'
has "missing"

echo "a folder named latest among the checkpoints gives status 3 before the first step"
mkdir -p untidy/checkpoints/latest
run 3 "$mpirun" -n 4 "$trireme" train tiny.yaml --set run.dir=untidy
has "untidy/checkpoints/latest: this is a folder, but the file"
[[ ! -s untidy/metrics.jsonl ]] || fail "the run trained although it could save nothing"

echo "with ulimit -f below a rank's memory, auto shares no memory and checkpoints fail with EFBIG; copies are refused"
limited=(bash -c 'ulimit -f 12288 && exec "$@"' limited "$mpirun" -n 2 "$trireme" train tiny.yaml
  --set run.dir=limited --set parallel.tp=1 --set parallel.pp=1 --set model.hidden=512 --set model.layers=2
  --set run.steps=2 --set run.eval_batches=0
  --set run.sample_tokens=0)
run 3 "${limited[@]}" --set checkpoint.every=1
has "(parallel.dp_transfers: auto: "
has "is limited to files of 12582912 bytes (ulimit -f)"
has "checkpoint of step 1 failed (1 consecutive failure):"
has "File too large"
[[ $(grep -c '"loss":' limited/metrics.jsonl) -gt 0 ]] || fail "no step was trained" "$output"
run 2 "${limited[@]}" --set parallel.dp_transfers=copies
has "(ulimit -f); set auto"

echo "a loss that is not finite gives status 7, with rank, step and tensor"
diverges=(--set lr.peak=1e30 --set optimizer.weight_decay=0 --set optimizer.clip=0)
run 7 "$mpirun" -n 8 "$trireme" train tiny.yaml "${diverges[@]}"
has "not finite"
has "step "
has "rank "
has "[pp"
has "gradient of "
grep -q "not finite" runs/tiny/log.txt || fail "log.txt does not say why the run ended"

echo "a checkpoint that is being written when a step is not finite is completed before the run ends"
rm -rf runs
run 7 "$mpirun" -n 2 "$trireme" train tiny.yaml --set parallel.tp=1 "${diverges[@]}" --set checkpoint.every=1
has "stopped before the next step"
[[ -s runs/tiny/checkpoints/step_00000001/manifest.json ]] || fail "the checkpoint of step 1 was given up" "$(ls runs/tiny/checkpoints)"

echo "fault.on_nonfinite: skip: such steps are skipped, counted and named; too many in a row: status 7"
for layout in "1 tp=1 pp=1 zero=0" "4 tp=2 pp=1 zero=2" "8 tp=2 pp=2 zero=1"; do
  read -r ranks tp pp zero <<<"$layout"
  rm -rf runs
  skip=("${diverges[@]}" --set "parallel.$tp" --set "parallel.$pp" --set "parallel.$zero" --set fault.on_nonfinite=skip
    --set run.eval_batches=0 --set run.sample_tokens=0)
  run 0 "$mpirun" -n "$ranks" "$trireme" train tiny.yaml "${skip[@]}" --set fault.max_skips=3
  has "step 2: loss "
  has "skipped (1 of at most 3 consecutive skips"
  has "rank 0 [pp0 dp0 tp0]: "
  has "3 of these steps were skipped because their loss or gradients were not finite"
  [[ $(grep -c '"not_finite":\["rank ' runs/tiny/metrics.jsonl) -eq 3 ]] || fail "$layout: metrics.jsonl lacks skipped steps" "$(cat runs/tiny/metrics.jsonl)"
  grep -q '"step":4,.*"skipped_steps":3,' runs/tiny/metrics.jsonl || fail "$layout: they are not counted" "$(cat runs/tiny/metrics.jsonl)"
done
rm -rf runs
run 7 "$mpirun" -n "$ranks" "$trireme" train tiny.yaml "${skip[@]}" --set fault.max_skips=2
has "step 4: loss "
has "nor were those of the 2 steps before it (fault.max_skips)"

echo "with time-based checkpoints, all ranks save after the same step; a run that saves only at its end logs a warning"
rm -rf runs
run 0 "$mpirun" -n 4 "$trireme" train tiny.yaml --set run.steps=20 --set checkpoint.every_minutes=1e-9
[[ $(grep -c checkpoint_bytes runs/tiny/metrics.jsonl) -ge 2 ]] || fail "nothing was saved before the end" "$output"
lacks "a crash loses all steps"
rm -rf runs
run 0 "$mpirun" -n 4 "$trireme" train tiny.yaml --set checkpoint.every_minutes=0
has "a crash loses all steps"
run 0 "$trireme" check tiny.yaml --ranks 4 --set checkpoint.every_minutes=0
has "a crash loses all steps"

echo "a device that the build does not support gives status 4"
run 4 "${alone[@]}" --set run.device=cuda

echo "if a rank never reaches MPI_Init, the others report that and end with status 6"
export TRIREME_START_SECONDS=2
# shellcheck disable=SC2016 # the ranks' shell expands it
run 6 "$mpirun" -n 2 bash -c '((OMPI_COMM_WORLD_RANK == 0)) || exec sleep 1000; exec "$0" train tiny.yaml' "$trireme"
has "TRIREME_START_SECONDS: the start of MPI has not finished after 2 s"

echo "a config whose storage does not respond, as a pipe without a writer: status 6"
mkfifo pipe.yaml
export TRIREME_START_SECONDS=20 # MPI's start, which is not the subject here, must take less
run 6 "$trireme" train pipe.yaml
has "TRIREME_START_SECONDS: reading the config and planning the run has not finished after"
has "the storage of the config, the data or the run may not respond"
unset TRIREME_START_SECONDS

finish
