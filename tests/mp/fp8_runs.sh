#!/usr/bin/env bash
# Runs with FP8 GEMMs, emulated on the CPU: they stop and continue with the same bits, or on another layout within the
# noise of FP8; FP8 can be turned on and off at a resume; the log reports what casts lose; runs of earlier versions
# continue; unsupported settings are refused.
#   fp8_runs.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 8, eval_batches: 2, sample_tokens: 0, device: cpu}
model: {layers: 4, hidden: 64, heads: 4, vocab: 257, seq_len: 32}
data: {sources: [text], global_batch: 8, tokenizer: bytes}
precision: {compute: bf16, gemm: fp8}
lr: {peak: 1e-2, decay_steps: 8}
metrics: {fp8_every: 4}
YAML
make_text
mesh=(parallel.tp=2 parallel.dp=2)

# apart RUN RUN: prints the largest difference between their losses of one step, relative to the loss.
apart() {
  join <(curve "$1" | cut -d' ' -f1,2 | sort) <(curve "$2" | cut -d' ' -f1,2 | sort) |
    awk '{d = ($2 - $3) / $3; if (d < 0) d = -d; if (d > most) most = d} END {print NR == 0 ? "inf" : most + 0}'
}
# near RUN RUN MOST: succeeds if they differ by at most MOST; fails if no step is in both.
near() {
  awk -v apart="$(apart "$1" "$2")" -v most="$3" 'BEGIN {exit !(apart != "inf" && apart <= most)}'
}

echo "a stop and a resume give the same bits, with evaluations at other steps"
train 0 whole 4 "${mesh[@]}"
train 0 parts 4 "${mesh[@]}" run.steps=3
train 0 parts 4 "${mesh[@]}" run.eval_every=4
has "resumed from parts/checkpoints/step_00000003"
has "gemms: fp8 in 4 of 4 layers, gradients e5m2, emulated"
cmp -s <(curve whole) <(curve parts) || fail "the curves differ" "$(diff <(curve whole) <(curve parts))"
[[ $(curve parts | wc -l) -eq 8 ]] || fail "metrics.jsonl does not have every step once"

echo "every fourth step has the statistics of every tensor"
[[ $(grep -c '^{"fp8":{"step":[48],' whole/metrics.jsonl) -eq 2 ]] || fail "lines of FP8" "$(cat whole/metrics.jsonl)"
[[ $(grep '^{"fp8":{"step":8,' whole/metrics.jsonl | grep -o '"tensor":"layers/3/mlp/fc1/[a-z]*"' | wc -l) -eq 3 ]] ||
  fail "expected three tensors of fc1 in layer 3"
[[ $(grep '^{"fp8":{"step":8,' whole/metrics.jsonl | grep -o '"saturated":' | wc -l) -eq 48 ]] || fail "expected 48 tensors"

# Measured on this machine, with the kernels for its processor; four times, because a single run shows little.
echo "the effect of rounding alone: the same steps with sums in another order and other rounding"
rounding=0
train 0 summed_1 1
train 0 summed_2 1 data.micro_batch=4
train 0 summed_3 2 parallel.tp=2
train 0 summed_4 4 parallel.tp=4
for i in 1 2 3 4; do
  rounding=$(awk -v a="$rounding" -v b="$(apart "summed_$i" whole)" 'BEGIN {print (a > 4 * b ? a : 4 * b)}')
done
echo "losses are at most $rounding apart"
awk -v a="$rounding" 'BEGIN {exit !(a > 0 && a < 0.05)}' || fail "rounding alone moves a loss by $rounding"

echo "the checkpoint continues on another layout, without FP8 and with FP8 again"
train 0 start 4 "${mesh[@]}" run.steps=4
cp -r start other && cp -r start plain
train 0 other 2 parallel.pp=2
has "resumed from other/checkpoints/step_00000004"
near other whole "$rounding" || fail "another layout: more than $rounding" "$(paste <(curve other) <(curve whole))"
cmp -s <(curve other) <(curve whole) && fail "the losses on another layout are bit-identical, so it was not used"
train 0 plain 4 "${mesh[@]}" precision.gemm=compute run.steps=6
has "precision.gemm: fp8, now compute"
lacks "gemms: fp8"
train 0 plain 4 "${mesh[@]}" precision.fp8_first_layers=1
has "gemms: fp8 in 3 of 4 layers"
train 0 never 4 "${mesh[@]}" precision.gemm=compute
formats=$(awk -v a="$rounding" -v b="$(apart never whole)" 'BEGIN {print a + 2 * b}')
near plain whole "$formats" || fail "two steps without FP8: more than $formats" "$(paste <(curve plain) <(curve whole))"

echo "a bf16 run continues with FP8, and its first FP8 step determines the scales"
train 0 joined 4 "${mesh[@]}" precision.gemm=compute run.steps=4
train 0 joined 4 "${mesh[@]}"
has "resumed from joined/checkpoints/step_00000004"
has "precision.gemm: compute, now fp8"
has "gemms: fp8 in 4 of 4 layers"
near joined whole "$formats" || fail "four steps with FP8: more than $formats" "$(paste <(curve joined) <(curve whole))"
cmp -s <(curve joined | tail -n 4) <(curve never | tail -n 4) && fail "no layer multiplied FP8"

echo "the log names tensors with many clipped values"
train 0 loud 4 "${mesh[@]}" lr.peak=0.3 optimizer.clip=0 run.steps=4
has " of 48 tensors)"

echo "runs of earlier versions continue: removed config fields are ignored with a warning, or refused"
cp -r start old
resume_old() { run "$1" "$mpirun" -n 4 "$trireme" train old/config.yaml --set run.dir=old --set run.steps=6; }
sed -i 's/^  fp8_fast_accumulation:.*/&\n  fp8_wgrad: fp8\n  fp8_guard: off/' old/config.yaml old/resolved.yaml
[[ $(grep -c "^  fp8_guard: off$" old/config.yaml old/resolved.yaml | grep -c ":1$") -eq 2 ]] || fail "no old config"
resume_old 0
has "resumed from old/checkpoints/step_00000004"
lacks "was removed"
cmp -s <(curve old) <(curve whole | head -n 6) || fail "the curves differ" "$(diff <(curve old) <(curve whole))"
sed -i 's/^  fp8_fast_accumulation:.*/&\n  fp8_guard: on/' old/resolved.yaml
run 0 "$trireme" config diff old/resolved.yaml old/resolved.yaml
has "precision.fp8_guard: on was removed: layers stay in FP8"
sed -i 's/^  gemm: fp8$/  gemm: auto/' old/config.yaml
resume_old 2
has "precision.gemm: auto was removed: a benchmark at start-up should not decide the number format of a run"
run 2 "$trireme" check tiny.yaml --ranks 4 --set precision.fp8_guard=on
has "--set precision.fp8_guard=on: was removed"

echo "a checkpoint evaluates without FP8"
run 0 "$trireme" eval whole --batches 1

echo "unsupported settings are refused with the reason"
train 2 wrong 4 "${mesh[@]}" model.hidden=72 model.heads=4
has "precision.gemm: fp8 needs multiples of 16, but model.hidden is 72"
train 2 wrong 1 precision.fp8_first_layers=3 precision.fp8_last_layers=1
has "leave none of 4 layers in fp8"
run 2 "$trireme" check tiny.yaml --ranks 4 --set run.device=cuda --set parallel.tp=2 --set precision.compute=fp32
has "precision.gemm: fp8: on GPUs it requires precision.compute: bf16, but that is fp32"
run 0 "$trireme" check tiny.yaml --ranks 4 --set run.device=cuda --set parallel.tp=2 --set precision.compute=bf16
has "gemms: fp8 in 4 of 4 layers, gradients e5m2, fast accumulation: forward (precision.gemm: fp8)"
run 0 "$trireme" check tiny.yaml --ranks 4 --set parallel.tp=2 --verbose
has "fp8 weights"

finish
