#!/usr/bin/env bash
# Uses a trained model: trireme eval and generate on several layouts, and conversion to another run and back.
#   use_is_equal_on_any_layout.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

field() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" <<<"$output" | tail -1; }
near() { awk -v a="$1" -v b="$2" 'BEGIN {d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 1e-5 * b)}'; }

bottles >text.txt
run 0 "$trireme" data train-tokenizer --vocab 400 --output bpe.model text.txt
run 0 "$trireme" data prepare --format text --tokenizer bpe.model --output text text.txt
cp text.bin first.bin
run 2 "$trireme" data prepare --tokenizer bytes --output text text.txt
has "text.bin: already exists; overwrite it with --force"
cmp -s text.bin first.bin || fail "output that was refused was written"
gzip -k text.txt
run 0 "$trireme" data prepare --tokenizer bpe.model --output text --force text.txt.gz
cmp -s text.bin first.bin || fail "compressed text gives different tokens"
cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 40, eval_batches: 1000, sample_tokens: 0}
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, vocab: 400, seq_len: 32, norm: rmsnorm, activation: swiglu,
        position: rope, bias: false}
data: {sources: [text], tokenizer: bpe.model, global_batch: 8, micro_batch: 2, validation_fraction: 0.2,
       validation: [{name: more, path: more}]}
parallel: {tp: 2, pp: 2, chunks: 2, schedule: interleaved}
lr: {peak: 1e-2}
YAML
run 0 "$trireme" data prepare --tokenizer bpe.model --output more --format text tiny.yaml
run 0 "$mpirun" -n 4 "$trireme" train tiny.yaml
trained=$(sed -n 's/.*"validation_loss":\([^,}]*\).*/\1/p' runs/tiny/metrics.jsonl)
state() { find runs/tiny -type f -exec md5sum {} + | sort -k 2; }
before=$(state)
named=$(sed -n 's/.*"validation":{"more":\([^,}]*\).*/\1/p' runs/tiny/metrics.jsonl)

echo "eval gives the validation loss of the training on any layout"
for layout in "4 parallel.pp=4" "2 parallel.tp=1 parallel.pp=2" "4 parallel.cp=2 parallel.tp=2"; do # the next check has others
  read -ra words <<<"$layout"
  settings=()
  for setting in "${words[@]:1}"; do settings+=(--set "$setting"); done
  run 0 "$mpirun" -n "${words[0]}" "$trireme" eval runs/tiny --json "${settings[@]}"
  near "$(field loss)" "$trained" || fail "eval on $layout: loss $(field loss), training saw $trained"
  [[ $(field perplexity_per_byte) != null ]] || fail "the result has no perplexity per byte" "$output"
done
echo "every sample counts once for any data.global_batch and layout"
run 0 "$trireme" eval runs/tiny --data text --json --set data.micro_batch=1 --set data.global_batch=1
whole=$(field loss) samples=$(field samples)
[[ $samples -gt 5 ]] || fail "a file of $samples samples" "$output"
for layout in "1 data.global_batch=3 data.micro_batch=3" "1 data.global_batch=$((samples + 5)) data.micro_batch=1" \
  "2 data.global_batch=14 data.micro_batch=7 parallel.tp=1" "2 data.global_batch=4 parallel.tp=2" \
  "4 data.global_batch=14 data.micro_batch=7" \
  "4 parallel.pp=2 parallel.tp=1 data.global_batch=12 data.micro_batch=3"; do
  read -ra words <<<"$layout"
  settings=()
  for setting in "${words[@]:1}"; do settings+=(--set "$setting"); done
  run 0 "$mpirun" -n "${words[0]}" "$trireme" eval runs/tiny --data text --json "${settings[@]}"
  near "$(field loss)" "$whole" || fail "eval on $layout: loss $(field loss), expected $whole"
  [[ $(field samples) == "$samples" ]] || fail "eval on $layout: $(field samples) samples, expected $samples"
  [[ $layout == 4* || -n ${TRIREME_ALL_CASES:-} ]] || continue # the run's own validation files
  run 0 "$mpirun" -n "${words[0]}" "$trireme" eval runs/tiny --json "${settings[@]}"
  near "$(field loss)" "$trained" || fail "eval on $layout: loss $(field loss), training saw $trained"
done
run 0 "$trireme" eval runs/tiny --data more --json
near "$(field loss)" "$named" || fail "a named validation of two stages: $named, eval gives $(field loss)"
run 0 "$trireme" eval runs/tiny --data text --data more --json
[[ $(field samples) -gt $samples ]] || fail "two files have $(field samples) samples, one has $samples"
run 0 "$trireme" eval runs/tiny/checkpoints/step_00000040 --batches 2
has "over 16 samples of"
run 0 "$trireme" eval runs/tiny --data text --set precision.compute=bf16
has "per byte"

echo "generate prints the same tokens on any layout, as many as requested"
run 0 "$trireme" generate runs/tiny --prompt "7 green" --tokens 12 --temperature 0 --quiet
alone=$output
has "7 green bottles"
for ranks in 2 4; do
  run 0 "$mpirun" -n "$ranks" "$trireme" generate runs/tiny --prompt "7 green" --tokens 12 --temperature 0 --quiet
  [[ $output == "$alone" ]] || fail "$ranks ranks generate another text" "$output"
done
run 0 "$trireme" generate runs/tiny --prompt "7 green " --tokens 60 --seed 5 --top-p 0.9 --quiet
first=$output
run 0 "$trireme" generate runs/tiny --prompt "7 green " --tokens 60 --seed 5 --top-p 0.9 --quiet
[[ $output == "$first" ]] || fail "equal seeds give different texts" "$output"
run 0 "$trireme" generate runs/tiny --prompt-ids 5,6,7 --tokens 3
[[ $(tail -1 <<<"$output") =~ ^5\ 6\ 7(\ [0-9]+){3}$ ]] || fail "ids" "$output"
run 0 "$trireme" generate runs/tiny --tokens 3
run 0 "$trireme" generate runs/tiny --prompt "7 green" --tokens 12 --temperature 0 --stop "tles sh" --stop never
[[ $(tail -1 <<<"$output") == "7 green bot" ]] || fail "a text that should stop" "$output"

echo "prompts of a file are continued together as if alone, on any layout"
long=$(printf '%s green bottles hanging on the wall, ' 9 8 7 6 5)
cat >prompts.jsonl <<JSONL
{"prompt": "7 green"}
{"prompt": "$long"}
{"prompt_ids": [5, 6, 7]}

{"prompt": "", "seed": 9}
{"prompt": "And if one green", "name": "another field"}
JSONL
for sampling in "--temperature 0" "--seed 5 --top-p 0.9"; do
  read -ra sampled <<<"$sampling"
  generate=("$trireme" generate runs/tiny --tokens 40 --stop "wall" "${sampled[@]}" --quiet)
  run 0 "${generate[@]}" --prompts prompts.jsonl
  together=$output
  [[ $(grep -c '"finish":"\(end\|stop\|length\)"' <<<"$together") -eq 5 ]] || fail "answers to 5 prompts" "$together"
  run 0 "${generate[@]}" --prompts prompts.jsonl --batch 2
  [[ $output == "$together" ]] || fail "two at a time generate other texts" "$output"
  for prompt in "1 7 green" "2 $long" "5 And if one green"; do
    run 0 "${generate[@]}" --json --prompt "${prompt#* }"
    [[ $output == "$(sed -n "${prompt%% *}p" <<<"$together")" ]] || fail "alone: another text" "$output"
  done
  layouts=("4" "2" "2 parallel.pp=2" "4 parallel.pp=4" "2 parallel.cp=2") # without parts of sequences
  [[ $sampling == *seed* || -n ${TRIREME_ALL_CASES:-} ]] || layouts=("4" "4 parallel.pp=4")
  for layout in "${layouts[@]}"; do
    read -ra words <<<"$layout"
    settings=()
    for setting in "${words[@]:1}"; do settings+=(--set "$setting"); done
    run 0 "$mpirun" -n "${words[0]}" "${generate[@]}" --prompts prompts.jsonl "${settings[@]}"
    [[ $output == "$together" ]] || fail "$sampling on $layout: other texts" "$output"
  done
done

echo "texts have the same log-likelihoods on any layout"
cat >texts.jsonl <<JSONL
{"text": "7 green bottles hanging on the wall"}
{"context": "7 green", "continuation": " bottles"}
{"context": "$long", "continuation": "4 green bottles"}
{"text": "$long$long"}
{"text": "\u00e9"}
JSONL
run 0 "$trireme" eval runs/tiny --texts texts.jsonl --quiet
scores=$output
[[ $(sed -n 2p <<<"$scores") == *'"bytes":8,'*'"is_greedy":true}' ]] || fail "the model knows its text" "$scores"
[[ $(sed -n 5p <<<"$scores") == *'"bytes":2,'*'"is_greedy":false}' ]] || fail "a text that it does not know" "$scores"
for layout in "4" "2" "4 parallel.pp=4" "2 parallel.tp=1 parallel.pp=2"; do
  read -ra words <<<"$layout"
  settings=()
  for setting in "${words[@]:1}"; do settings+=(--set "$setting"); done
  run 0 "$mpirun" -n "${words[0]}" "$trireme" eval runs/tiny --texts texts.jsonl --quiet "${settings[@]}"
  for line in 1 2 3 4 5; do
    one=$(sed -n ${line}p <<<"$scores") other=$(sed -n ${line}p <<<"$output")
    near "$(sed -n 's/.*"bits_per_byte":\([^,]*\).*/\1/p' <<<"$other")" \
      "$(sed -n 's/.*"bits_per_byte":\([^,]*\).*/\1/p' <<<"$one")" || fail "text $line on $layout: $other, expected $one"
  done
done

echo "a folded pipeline, whose first rank has the first and the last layers, is used like any other"
run 0 "$mpirun" -n 4 "$trireme" train tiny.yaml --set run.name=folded --set run.steps=6 --set parallel.schedule=zb_v
folded=$(sed -n 's/.*"validation_loss":\([^,}]*\).*/\1/p' runs/folded/metrics.jsonl)
for layout in "1" "4" "2 parallel.pp=2 parallel.chunks=2 parallel.schedule=zb_v"; do # 4: as in training
  read -ra words <<<"$layout"
  settings=()
  for setting in "${words[@]:1}"; do settings+=(--set "$setting"); done
  use=("$mpirun" -n "${words[0]}" "$trireme")
  run 0 "${use[@]}" eval runs/folded --json "${settings[@]}"
  near "$(field loss)" "$folded" || fail "eval on $layout: loss $(field loss), training saw $folded"
  run 0 "${use[@]}" generate runs/folded --prompts prompts.jsonl --tokens 12 --temperature 0 --quiet "${settings[@]}"
  [[ $layout != 1 ]] || together=$output
  [[ $output == "$together" ]] || fail "$layout: other texts" "$output"
  run 0 "${use[@]}" eval runs/folded --texts texts.jsonl --quiet "${settings[@]}"
  score=$(sed -n '3s/.*"bits_per_byte":\([^,]*\).*/\1/p' <<<"$output")
  [[ $layout != 1 ]] || alone=$score
  near "$score" "$alone" || fail "text 3 on $layout: $score bits per byte, expected $alone"
done
run 0 "$trireme" checkpoint export runs/folded out_folded
run 0 "$trireme" checkpoint import out_folded runs/unfolded --set data.sources=[text] --set data.micro_batch=2
run 0 "$trireme" checkpoint diff runs/folded runs/unfolded --only model/
has "EQUAL"

echo "files of prompts and texts that are wrong are refused"
echo '{"prompt": 3}' >bad.jsonl
run 2 "$mpirun" -n 2 "$trireme" generate runs/tiny --prompts bad.jsonl
has 'bad.jsonl:1: "prompt" is not a string'
run 3 "$trireme" generate runs/tiny --prompts none.jsonl
has "none.jsonl"
echo '{"prompt_ids": [400]}' >bad.jsonl
run 2 "$trireme" generate runs/tiny --prompts bad.jsonl
has "outside the model's vocabulary"
run 2 "$trireme" generate runs/tiny --stop ""
has "--stop"
run 2 "$trireme" generate runs/tiny --prompts prompts.jsonl --set precision.gemm=fp8
has "precision.gemm"
run 2 "$mpirun" -n 2 "$trireme" eval runs/tiny --texts bad.jsonl
has 'bad.jsonl:1: expected either "text", or "context" and "continuation"'
echo '{"text": ""}' >bad.jsonl
run 2 "$trireme" eval runs/tiny --texts bad.jsonl
has "text 1: there is no text to score"
[[ $(state) == "$before" ]] || fail "the run's folder was changed" "$(diff <(echo "$before") <(state))"

echo "settings that change the trained model are refused"
run 2 "$trireme" eval runs/tiny --set model.layers=3
has "model.layers: 4, now 3"
run 2 "$trireme" eval runs/tiny --set model.layers=3 --set checkpoint.accept_changes=true
has "the config's model has no model/"
run 2 "$trireme" eval runs/tiny --set model.window=8 --set model.seq_len=16
has "model.seq_len: 32, now 16"
has "checkpoint.accept_changes to model.seq_len,model.window"
run 2 "$mpirun" -n 2 "$trireme" generate runs/tiny --tokens 3 --set model.heads=2 --set model.kv_heads=1
has "model.heads: 4, now 2"
run 0 "$trireme" eval runs/tiny --set model.window=8 --set checkpoint.accept_changes=model.window
has "warning: runs/tiny/checkpoints/step_00000040 was trained with a different model"

echo "the message names what is missing"
run 3 "$trireme" generate nowhere
run 3 "$trireme" eval .
has "neither a checkpoint nor a folder that contains one"
[[ $output != *"was searched"* ]] || fail "the folder itself is named twice" "$output"
run 2 "$trireme" generate runs/tiny --set data.tokenizer=none.model
has "none.model"
run 2 "$trireme" generate runs/tiny --prompt-ids 400
has "outside the model's vocabulary"
run 3 "$trireme" eval runs/tiny --data none
has "none.idx"
run 2 "$trireme" eval runs/tiny --set data.validation_fraction=0
has "--data"
run 2 "$mpirun" -n 3 "$trireme" eval runs/tiny
has "data.global_batch"

echo "export and import restore the weights, and training continues from them with zero moments"
run 0 "$trireme" checkpoint export runs/tiny out
has "copied to tokenizer.model"
run 3 "$trireme" generate out
has "trireme checkpoint import out RUN_DIR"
run 0 "$trireme" checkpoint import out runs/back --set data.sources=[text] --set data.micro_batch=2
run 0 "$trireme" checkpoint diff runs/tiny runs/back --only model/
has "EQUAL"
run 1 "$trireme" checkpoint diff runs/tiny runs/back
has "only in A"
has "config run.steps: 40 in A, 100 in B"
run 0 "$trireme" checkpoint verify runs/back/checkpoints/step_00000000
run 0 "$trireme" generate runs/back --prompt "7 green" --tokens 12 --temperature 0
has "7 green bottles"
run 0 "$mpirun" -n 4 "$trireme" train runs/back/config.yaml --set run.steps=2 --set parallel.tp=2 --set run.sample_tokens=0 \
  --set optimizer.ema=0.75 --set checkpoint.every=1
has "resumed from runs/back/checkpoints/step_00000000"
has "the optimizer starts from zero"
has "the EMA starts from the weights"
loss=$(sed -n '1s/.*"loss":\([^,}]*\).*/\1/p' runs/back/metrics.jsonl)
awk -v first="$loss" 'BEGIN {exit !(first > 0 && first < 3)}' || fail "training does not begin from the imported weights: loss $loss"
run 1 "$trireme" checkpoint diff runs/back/checkpoints/step_00000000 runs/back/checkpoints/step_00000002 --only model/

echo "--ema uses the moving average of the weights after each step"
run 2 "$trireme" checkpoint export runs/tiny out_average --ema
has "has no average of the weights"
[[ ! -e out_average ]] || fail "a refused export left a folder"
run 2 "$mpirun" -n 2 "$trireme" generate runs/tiny --ema --tokens 3
has "runs/tiny/checkpoints/step_00000040: the checkpoint has no average of the weights"
for step in 0 1 2; do run 0 "$trireme" checkpoint export "runs/back/checkpoints/step_0000000$step" "out_$step"; done
run 0 "$trireme" checkpoint export runs/back out_average --ema
if command -v python3 >/dev/null; then
  python3 - <<'PYTHON' || fail "the exported average is not that of the weights"
import array, json, struct

def tensors(folder):
    data = open(folder + "/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    slices = {name: [8 + size + offset for offset in entry["data_offsets"]] for name, entry in header.items()}
    return {name: array.array("f", data[begin:end]) for name, (begin, end) in slices.items()}

start, *steps = [tensors("out_%d" % step) for step in range(3)]
average = tensors("out_average")
assert average.keys() == start.keys() and len(start) > 10
farthest = 0
for name, values in average.items():
    for i, value in enumerate(values):
        expected = start[name][i]
        for weights in steps:
            expected = 0.75 * expected + 0.25 * weights[name][i]
        assert abs(value - expected) <= 1e-6 * max(1, abs(expected)), (name, i, value, expected)
        farthest = max(farthest, abs(value - steps[-1][name][i]))
assert farthest > 1e-4, farthest
PYTHON
else
  echo "skipped: no python3"
fi
run 0 "$trireme" checkpoint import out_average runs/average --set data.sources=[text] --set data.micro_batch=2
run 0 "$trireme" eval runs/average --data text --json
average=$(field loss)
run 0 "$trireme" eval runs/back --data text --json
last=$(field loss)
near "$last" "$average" && fail "the average has the loss of the weights, $last"
for ranks in 1 2; do
  run 0 "$mpirun" -n "$ranks" "$trireme" eval runs/back --data text --json --ema
  near "$(field loss)" "$average" || fail "eval --ema on $ranks ranks: loss $(field loss), expected $average"
done
run 0 "$trireme" generate runs/average --prompt "7 green" --tokens 12 --temperature 0
average=$output
run 0 "$mpirun" -n 2 "$trireme" generate runs/back --prompt "7 green" --tokens 12 --temperature 0 --ema
[[ $(tail -1 <<<"$output") == "$(tail -1 <<<"$average")" ]] || fail "another text" "$output"

run 3 "$trireme" checkpoint import out runs/back
run 3 "$trireme" checkpoint diff runs/tiny nowhere
run 0 "$mpirun" -n 4 "$trireme" train tiny.yaml --set model.block=parallel --set run.name=parallel --set run.steps=1
run 2 "$trireme" checkpoint export runs/parallel out_parallel
has "model.block: parallel"
[[ ! -e out_parallel ]] || fail "a refused export left a folder"

finish
