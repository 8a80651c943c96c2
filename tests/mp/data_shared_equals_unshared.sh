#!/usr/bin/env bash
# Token files are read either by one rank of a node for all its ranks, or by every rank for itself. Both give the same
# losses.
#   data_shared_equals_unshared.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 6, eval_every: 3, eval_batches: 1, sample_tokens: 0, device: cpu}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 32}
data: {sources: [text], global_batch: 8, tokenizer: bytes, validation_fraction: 0.1}
lr: {peak: 1e-2, decay_steps: 6}
YAML
make_text
step_bytes=$((8 * 33 * 2)) # samples, tokens, bytes per token
data_bytes() { sed -n 's/.*"data_bytes":\([0-9]*\).*/\1/p' "$1/metrics.jsonl" | sort -u | tr '\n' ' '; }
validation() { sed -n 's/,"time":.*//; /validation_loss/p' "$1/metrics.jsonl"; }

echo "shared or not, the losses are bit-identical; if shared, the node reads every byte once"
for layout in "1 1 1" "4 4 1 dp=4 data.prefetch=1" "4 2 2 pp=4" \
  "8 8 4 tp=2 pp=2 dp=2 parallel.chunks=2 parallel.schedule=interleaved data.prefetch=5" \
  "8 4 2 pp=4 dp=2 parallel.zero=2 data.micro_batch=2"; do
  read -r ranks off_readers off_bytes settings <<<"$layout" # not shared: number of readers, reads of every byte
  read -ra settings <<<"$(sed 's/\b[tpd]p=/parallel.&/g' <<<"$settings")"
  rm -rf on off
  of_ranks="$ranks rank$([[ $ranks -eq 1 ]] || echo s)"
  train 0 on "$ranks" "${settings[@]}"
  has "data: $((6 * step_bytes)) bytes of token files for 6 steps, read by 1 of $of_ranks; at most $((6 * step_bytes)) on one of 1 node"
  [[ $(data_bytes on) == "$step_bytes " ]] || fail "$layout: metrics.jsonl has data_bytes $(data_bytes on), expected $step_bytes"
  train 0 off "$ranks" "${settings[@]}" data.shared=false
  has "data: $((6 * off_bytes * step_bytes)) bytes of token files for 6 steps, read by $off_readers of $of_ranks"
  [[ $(curve on | wc -l) -eq 6 ]] || fail "$layout: metrics.jsonl lacks steps"
  cmp -s <(curve on) <(curve off) || fail "$layout: the curves differ" "$(diff <(curve on) <(curve off))"
  cmp -s <(validation on) <(validation off) || fail "$layout: evaluations differ"
done

echo "a resumed run reads from the exact next sample"
rm -rf on parts
train 0 on 4 parallel.tp=2 parallel.pp=2
train 0 parts 4 parallel.tp=2 parallel.pp=2 run.steps=2
train 0 parts 4 parallel.tp=2 parallel.pp=2
has "for 4 steps"
cmp -s <(curve on) <(curve parts) || fail "the curves differ" "$(diff <(curve on) <(curve parts))"

echo "if a token file shrinks during a run, all ranks end with status 3 and name the file"
for shared in true false; do
  cp text.bin thin.bin && cp text.idx thin.idx
  rm -rf failing
  start failing 4 run.steps=1000000 run.eval_every=0 'data.sources=[thin]' parallel.pp=4 "data.shared=$shared" lr.peak=1e-5
  until_true steps_done failing 3
  truncate -s 1000 thin.bin
  end_of failing 3
  has "thin.bin"
  has "truncated"
done

echo "a signal during a read stops the run with status 75"
for layout in parallel.tp=4 parallel.pp=4 parallel.dp=4; do
  rm -rf stopping
  start stopping 4 run.steps=1000000 run.eval_every=0 data.prefetch=4 "$layout" lr.peak=1e-5
  until_true steps_done stopping 3
  kill -TERM "$(pid_of 1)"
  end_of stopping 75
done

finish
