#!/usr/bin/env bash
# Loss curves of moments in bf16 against moments in fp32 on real text, from the same start values and samples.
#   TOKENS=prefix tests/golden/moments.sh BUILD_DIR OUT_DIR [--set ...]      TOKENS: prepared as bytes
# Also from the environment: SEEDS ("1 2"), BETA2S ("0.95 0.999"), STEPS (600), CONFIG (the quick start's), DEVICE (cpu).
# Ends with 1 where bf16's last mean, on average over the seeds, lies above fp32's by more than fp32's seeds differ.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=$1 out=$2 status=0
shift 2
mkdir -p "$out"
read -ra seeds <<<"${SEEDS:-1 2}"
for beta2 in ${BETA2S:-0.95 0.999}; do
  for seed in "${seeds[@]}"; do
    for moments in fp32 bf16; do
      name=${beta2}_${seed}_$moments
      slurm/mpirun -n 1 "$build/bin/trireme" train "${CONFIG:-configs/quickstart.yaml}" --set "run.dir=$out/$name" \
        --set "run.seed=$seed" --set "data.seed=$((seed + 1))" --set "run.steps=${STEPS:-600}" \
        --set "data.sources=[\"$TOKENS\"]" --set data.global_batch=8 --set data.micro_batch=8 \
        --set data.validation_fraction=0.05 --set "run.eval_every=${STEPS:-600}" --set run.eval_batches=16 \
        --set parallel.tp=1 --set parallel.pp=1 --set parallel.dp=1 --set "run.device=${DEVICE:-cpu}" \
        --set run.sample_tokens=0 --set "optimizer.beta2=$beta2" --set "optimizer.moments=$moments" "$@" \
        >"$out/$name.log" 2>&1 || { tail -n 5 "$out/$name.log"; status=1; }
    done
  done
done
[[ $status == 0 ]] || exit 1
python3 - "$out" <<'PY'
import glob, json, os, statistics, sys
last, beyond = {}, False
for path in sorted(glob.glob(sys.argv[1] + "/*/metrics.jsonl")):
    beta2, seed, moments = os.path.basename(os.path.dirname(path)).split("_")
    rows = [json.loads(line) for line in open(path)]
    losses = [row["loss"] for row in rows if "loss" in row and "grad_norm" in row]
    means = [statistics.fmean(losses[i:i + 50]) for i in range(0, len(losses) - 49, 50)]
    validation = [row["validation_loss"] for row in rows if "validation_loss" in row][-1]
    if not last:
        print("beta2 seed moments, steps to", " ".join(f"{50 * (i + 1):6}" for i in range(len(means))), "  validation")
    print(f"{beta2:5} {seed:>4} {moments:<17}", " ".join(f"{mean:6.4f}" for mean in means), f"  {validation:.4f}")
    last.setdefault(beta2, {}).setdefault(moments, []).append(means[-1])
for beta2, by in last.items():
    apart = [b - f for f, b in zip(by["fp32"], by["bf16"])]
    band = max(by["fp32"]) - min(by["fp32"])
    beyond |= statistics.fmean(apart) > band
    print(f"beta2 {beta2}: bf16 - fp32 {statistics.fmean(apart):+.4f} on average, seeds' band {band:.4f}")
sys.exit(beyond)
PY
