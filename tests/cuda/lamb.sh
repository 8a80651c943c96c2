#!/usr/bin/env bash
# On a machine with GPUs: compares LAMB at four times the batch with AdamW, at equal tokens of real text. Each runs with
# four peak learning rates, of which the best counts; runs share the GPUs. Exits with 1 if LAMB is over 1 % behind.
#   TOKENS=prefix tests/cuda/lamb.sh BUILD_DIR OUT_DIR      TOKENS: prepared as bytes, as configs/quickstart.sh does
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=$1 out=$2
mkdir -p "$out"
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
number=0
run() { # OPTIMIZER PEAK STEPS BATCH EVALUATE_EVERY EVALUATION_BATCHES SETTINGS...
  local name=$1_$2 warmup=$(($3 / 10))
  [[ $1 == lamb ]] || warmup=$(($3 / 20))
  CUDA_VISIBLE_DEVICES=$((number++ % (gpus > 0 ? gpus : 1))) slurm/mpirun -n 1 "$build/bin/trireme" train configs/quickstart.yaml \
    --set "run.dir=$out/$name" --set "run.steps=$3" --set "data.sources=[\"$TOKENS\"]" --set "optimizer.name=$1" \
    --set "lr.peak=$2" --set lr.min=0 --set "lr.warmup_steps=$warmup" --set "data.global_batch=$4" \
    --set data.micro_batch=4 --set "run.eval_every=$5" --set "run.eval_batches=$6" --set data.validation_fraction=0.05 \
    --set parallel.tp=1 --set parallel.pp=1 --set parallel.dp=1 --set run.device="${DEVICE:-cuda}" --set run.gemm_search=false \
    --set run.sample_tokens=0 --set optimizer.weight_decay=0.1 "${@:7}" >"$out/$name.log" 2>&1 &
}
steps=${STEPS:-1200} # of LAMB
for peak in ${ADAMW_PEAKS:-1e-3 2e-3 3e-3 4e-3}; do run adamw "$peak" $((4 * steps)) 4 "$steps" 128; done
for peak in ${LAMB_PEAKS:-8e-3 1.2e-2 1.6e-2 2e-2}; do
  run lamb "$peak" "$steps" 16 $((steps / 4)) 32 --set optimizer.beta2=0.99
done
wait
python3 - "$out" <<'PY'
import glob, json, os, sys
best = {}
for path in sorted(glob.glob(sys.argv[1] + "/*/metrics.jsonl")):
    optimizer, peak = os.path.basename(os.path.dirname(path)).split("_")
    rows = [json.loads(line) for line in open(path)]
    a_step = next((row["tokens"] // row["step"] for row in rows if "tokens" in row), 0)
    curve = [(row["step"] * a_step, row["validation_loss"]) for row in rows if "validation_loss" in row]
    if not curve:
        continue
    print(f"{optimizer} peak {peak}: validation loss {curve[-1][1]:.4f} after {curve[-1][0]} tokens")
    if optimizer not in best or curve[-1][1] < best[optimizer][1][-1][1]:
        best[optimizer] = (peak, curve)
for optimizer, (peak, curve) in best.items():
    print(optimizer, peak, " ".join(f"{tokens}:{loss:.4f}" for tokens, loss in curve))
ratio = best["lamb"][1][-1][1] / best["adamw"][1][-1][1]
print(f"LAMB at 4 x batch / AdamW: {ratio:.4f}")
sys.exit(ratio > 1.01)
PY
