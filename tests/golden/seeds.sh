#!/usr/bin/env bash
# Compares the loss curves of two values of a setting on real text over several seeds. Runs with the same seed have the
# same initial values and samples. Used to compare bf16 moments with fp32 and FP8 with bf16.
#   TOKENS=prefix tests/golden/seeds.sh BUILD_DIR OUT_DIR SETTING REFERENCE VALUE [--set ...]
#   TOKENS=runs/english tests/golden/seeds.sh build runs/moments optimizer.moments fp32 bf16
# Paths are relative to the repository's root. TOKENS: prepared as bytes. OUT_DIR: earlier results are deleted.
# Also from the environment: SEEDS ("1 2"), STEPS (600), EVAL_EVERY (STEPS), CONFIG (the quick start's), DEVICE (cpu),
# WITH ("section.key=value ...": further settings of VALUE's runs only).
# Exits with 1 if VALUE's last mean, averaged over the seeds, is above REFERENCE's by more than the spread of
# REFERENCE's seeds; with one seed it only prints the curves. Exits with 2 if a run failed.
set -uo pipefail
[[ $# -ge 5 && -n ${TOKENS:-} ]] || { sed -n '2,11s/^# //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/../.." || exit 2
build=$1 out=$2 setting=$3 reference=$4 value=$5 steps=${STEPS:-600}
shift 5
mkdir -p "$out"
read -ra seeds <<<"${SEEDS:-1 2}"
with=()
for set in ${WITH:-}; do with+=(--set "$set"); done
for seed in "${seeds[@]}"; do
  for of in "$reference" "$value"; do
    run=$out/${seed}_$of
    rm -rf "$run"
    only=()
    [[ $of == "$value" ]] && only=(${with[@]+"${with[@]}"})
    slurm/mpirun -n 1 "$build/bin/trireme" train "${CONFIG:-configs/quickstart.yaml}" --set "run.dir=$run" \
      --set "run.seed=$seed" --set "data.seed=$((seed + 1))" --set "run.steps=$steps" --set data.tokenizer=bytes \
      --set "data.sources=[\"$TOKENS\"]" --set data.global_batch=8 --set data.micro_batch=8 \
      --set data.validation_fraction=0.05 --set "run.eval_every=${EVAL_EVERY:-$steps}" --set run.eval_batches=16 \
      --set parallel.tp=1 --set parallel.pp=1 --set parallel.dp=1 --set parallel.chunks=1 \
      --set parallel.schedule=1f1b --set "run.device=${DEVICE:-cpu}" --set run.sample_tokens=0 "$@" \
      ${only[@]+"${only[@]}"} --set "$setting=$of" >"$run.log" 2>&1 || { tail -n 5 "$run.log"; exit 2; }
  done
done
python3 - "$out" "$setting" "$reference" "$value" "${seeds[@]}" <<'PY'
import json, statistics, sys
out, setting, reference, value, *seeds = sys.argv[1:]

def row(words, numbers): return "".join(f"{word:<9}" for word in words) + "".join(f"{number:>8}" for number in numbers)

last, titles = {reference: [], value: []}, None
for seed in seeds:
    for of in reference, value:
        lines = [json.loads(line) for line in open(f"{out}/{seed}_{of}/metrics.jsonl")]
        losses = [line["loss"] for line in lines if "loss" in line and "grad_norm" in line]
        means = [statistics.fmean(losses[at:at + 50]) for at in range(0, len(losses) - 49, 50)]
        validations = [(line["step"], line["validation_loss"]) for line in lines if "validation_loss" in line]
        if titles is None:
            titles = [f"to {50 * (at + 1)}" for at in range(len(means))] + [f"v. {step}" for step, _ in validations]
            print(row(["seed", setting.split(".")[-1]], titles))
        print(row([seed, of], [f"{loss:.4f}" for loss in means + [loss for _, loss in validations]]))
        last[of].append((means or losses)[-1])
apart = statistics.fmean(there / here - 1 for here, there in zip(last[reference], last[value]))
band = max(last[reference]) / min(last[reference]) - 1
print(f"{value} over {reference}, last mean: {apart:+.2%} on average of {len(seeds)}; {reference} by seed: {band:.2%}")
sys.exit(len(seeds) > 1 and apart > band)
PY
