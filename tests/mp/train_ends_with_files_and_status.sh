#!/usr/bin/env bash
# The executable as a user runs it: exit statuses, messages, files, and memory predicted against memory used.
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
[[ $(grep -c '"loss":' runs/tiny/metrics.jsonl) -eq 4 ]] || fail "metrics.jsonl has not one line a step" "$(cat runs/tiny/metrics.jsonl)"
[[ $(grep -c '"validation_loss":' runs/tiny/metrics.jsonl) -eq 1 ]] || fail "metrics.jsonl lacks the evaluation"
[[ -s runs/tiny/log.txt && -s runs/tiny/config.yaml ]] || fail "log.txt or config.yaml is missing"
run_total=$(grep -a -A20 'memory of rank 0' <<<"$output" | awk '$1 == "total" {print $(NF - 1); exit}')

echo "trireme check predicts the run's bytes"
run 0 "$trireme" check tiny.yaml --ranks 8
check_total=$(grep -a -A20 'memory of each rank of stage 0' <<<"$output" | awk '$1 == "total" {print $(NF - 1); exit}')
[[ -n $run_total && $run_total == "$check_total" ]] || fail "check predicts $check_total bytes, the run took $run_total"

echo "trireme check --get answers scripts, from the config's own mesh where it is whole"
run 0 "$trireme" check tiny.yaml --ranks 8 --get run.dir --get parallel.dp
[[ $output == $'runs/tiny\n2' ]] || fail "check --get prints '$output'"
run 0 "$trireme" check tiny.yaml --set parallel.dp=3 --set data.global_batch=9 --get parallel.dp
[[ $output == 3 ]] || fail "check --get prints '$output'"
run 2 "$trireme" check tiny.yaml --ranks 8 --get run.dri
has "run.dir"

echo "the same run again has the same losses, and its own config.yaml reproduces it"
grep '"loss"' runs/tiny/metrics.jsonl | cut -d, -f1-6 >first
cp runs/tiny/config.yaml again.yaml
rm -r runs/tiny/checkpoints
run 0 "$mpirun" -n 8 "$trireme" train again.yaml
grep '"loss"' runs/tiny/metrics.jsonl | cut -d, -f1-6 >second
cmp -s first second || fail "losses differ" "$(diff first second)"
grep '"loss"' runs/tiny/metrics.1.jsonl | cut -d, -f1-6 | cmp -s - first || fail "the earlier run's metrics were not kept aside"

echo "a user's mistakes: status 2, each error once, nothing made"
rm -r runs
run 2 "$mpirun" -n 8 "$trireme" train tiny.yaml --set model.heds=4 --set run.steps=none
has "did you mean model.heads?"
has "2 errors"
[[ $(grep -c 'did you mean model.heads' <<<"$output") -eq 1 ]] || fail "the error is printed more than once" "$output"
run 2 "$mpirun" -n 3 "$trireme" train tiny.yaml
has "3 ranks"
run 2 "$mpirun" -n 8 "$trireme" train nowhere.yaml
has "nowhere.yaml"
run 2 "$mpirun" -n 8 "$trireme" train tiny.yaml --set model.vocab=100
has "model.vocab"
"$trireme" data train-tokenizer --vocab 300 --output other.model text.txt >/dev/null 2>&1 || fail "train-tokenizer"
run 2 "$mpirun" -n 8 "$trireme" train tiny.yaml --set data.tokenizer=other.model --set model.vocab=400
has "was prepared with bytes"
run 2 "$trireme" train
run 2 "$trireme" check tiny.yaml
[[ ! -e runs ]] || fail "a refused run left a folder"

echo "bad data: status 3"
head -c 1000 text.bin >short.bin
cp text.idx short.idx
run 3 "$mpirun" -n 8 "$trireme" train tiny.yaml --set 'data.sources=[short]'
has "short.bin"
run 3 "$mpirun" -n 8 "$trireme" train tiny.yaml --set 'data.sources=[missing]'
has "missing"

echo "a loss that is not finite: status 7, with rank, step and tensor"
run 7 "$mpirun" -n 8 "$trireme" train tiny.yaml --set lr.peak=1e30 --set optimizer.weight_decay=0 --set optimizer.clip=0
has "not finite"
has "step "
has "rank "
has "[pp"
has "gradient of "

echo "a device that the build lacks: status 4"
run 4 "$mpirun" -n 8 "$trireme" train tiny.yaml --set run.device=cuda

finish
