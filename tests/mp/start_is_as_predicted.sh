#!/usr/bin/env bash
# A start's calls and bytes, counted by the program on 2 to 8 ranks, are those that `trireme simulate --startup`
# predicts: the calls do not grow with the ranks, and the bytes that a rank receives grow equally for every rank.
#   start_is_as_predicted.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 1, eval_batches: 0, sample_tokens: 0, device: cpu}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 32, tie_embeddings: false}
data: {sources: [text], global_batch: 8, micro_batch: 1, tokenizer: bytes}
YAML
make_text

calls=() bytes=()
for ranks in 2 4 8; do
  rm -rf run && train 0 run "$ranks" parallel.dp="$ranks"
  figures=$(sed -n 's/.*start-up traffic of rank 0: \([0-9]*\) collective calls delivered \([0-9]*\) bytes.*/\1 \2/p' <<<"$output")
  [[ -n $figures ]] || fail "the log has no figures of the start on $ranks ranks" "$output"
  read -r called brought <<<"$figures"
  calls+=("$called") bytes+=("$brought")
  echo "$ranks ranks: $called calls, $brought bytes received by each"
done
predicted=$("$trireme" simulate tiny.yaml --ranks 2 --set parallel.dp=2 --set run.device=cuda --startup --json --to 8 \
  --cluster "$source_dir/configs/clusters/h200.yaml" --cluster-set node.workers=8) || fail "simulate --startup"
field() { grep -o "\"$1\":[0-9]*" <<<"$predicted" | cut -d: -f2; }
mapfile -t known_calls < <(field calls)
mapfile -t known_bytes < <(field gathered_bytes)
[[ ${#known_calls[@]} -eq 3 ]] || {
  fail "expected three rows" "$predicted"
  finish
}
for i in 0 1 2; do
  [[ ${calls[i]} -eq ${known_calls[i]} ]] ||
    fail "${calls[i]} calls, predicted ${known_calls[i]}: kStartCalls in scaling.cpp"
  # Machine names and paths have other lengths elsewhere.
  ((4 * bytes[i] < 5 * known_bytes[i] && 4 * known_bytes[i] < 5 * bytes[i])) ||
    fail "${bytes[i]} bytes, predicted ${known_bytes[i]}: kBytesOnce, kBytesARank in scaling.cpp"
done
first=$((bytes[1] - bytes[0])) second=$((bytes[2] - bytes[1]))
((second > 3 * first / 2 && second < 5 * first / 2)) || fail "from 4 to 8 ranks $second bytes more, from 2 to 4 $first"
finish
