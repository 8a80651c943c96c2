#!/usr/bin/env bash
# On a machine with a GPU: compares loss curves on real text. CPU fp32 with CUDA fp32 (20 steps, 1e-4); CUDA bf16 with
# CUDA fp32 (200 steps with a slow start, 1 %, means over ten steps); CUDA fp32 with the stored curves of a Llama 3 and a
# Qwen3 (30 steps, 1e-4); GPT-2 124M in bf16 with PyTorch, if installed (300 steps, the same bound).
#   TOKENS=prefix tests/cuda/curves.sh BUILD_DIR OUT_DIR      TOKENS: prepared as bytes, as configs/quickstart.sh does
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=$1 out=$2 status=0
mkdir -p "$out"
curve() { # name, steps, settings
  slurm/mpirun -n 1 "$build/bin/trireme" train configs/quickstart.yaml --set "run.dir=$out/$1" --set "run.steps=$2" \
    --set "data.sources=[\"$TOKENS\"]" --set parallel.tp=1 --set parallel.pp=1 --set parallel.dp=1 \
    --set parallel.chunks=1 --set parallel.schedule=1f1b --set run.sample_tokens=0 --set run.eval_batches=0 "${@:3}" \
    >"$out/$1.log" 2>&1 || { tail -5 "$out/$1.log"; status=1; }
}
compare() { echo -n "$1: "; python3 tests/golden/compare.py "$out/$2/metrics.jsonl" "$out/$3/metrics.jsonl" --tolerance "${@:4}" || status=1; }
curve cpu_fp32 20 --set run.device=cpu --set precision.compute=fp32
curve cuda_fp32 20 --set run.device=cuda --set precision.compute=fp32
compare "CPU fp32, CUDA fp32, 20 steps" cpu_fp32 cuda_fp32 1e-4
# With the quick start's peak, rounding alone moves two curves apart by more than 1 %
# (lib/bench/measurements/loss_curves.md).
calm=(--set run.device=cuda --set lr.peak=8e-4 --set lr.warmup_steps=100)
curve cuda_fp32_long 200 "${calm[@]}" --set precision.compute=fp32
curve cuda_bf16_long 200 "${calm[@]}" --set precision.compute=bf16
compare "CUDA bf16, CUDA fp32, 200 steps" cuda_bf16_long cuda_fp32_long 1e-2 --means
# The settings of golden_llama3 and golden_qwen3 in tests/CMakeLists.txt.
golden() { # name, settings
  BUILD=$build TOLERANCE=1e-4 tests/golden/run.sh configs/quickstart.yaml "$out/$1" --set run.device=cuda \
    --set "run.name=$1" --set run.steps=30 --set data.global_batch=8 --set lr.warmup_steps=5 --set lr.peak=1e-3 \
    --set lr.min=1e-4 --set model.kv_heads=2 --set model.rope_original_seq_len=64 "${@:2}" >"$out/$1.log" 2>&1 &&
    grep -q "^golden curve:$" "$out/$1.log" || status=1
  echo "CUDA fp32, stored curve of $1: $(tail -1 "$out/$1.log")"
}
golden llama3 --set model.rope_theta=500000 --set model.rope_scaling=llama3 --set model.rope_factor=8
golden qwen3 --set model.head_dim=64 --set model.qk_norm=head --set model.rope_scaling=yarn --set model.rope_factor=4
BUILD=$build MEANS=1 tests/golden/run.sh configs/gpt2_124m.yaml "$out/golden" --set run.device=cuda --set run.steps=300 \
  --set data.global_batch=32 --set data.micro_batch=16 --set lr.peak=3e-4 --set lr.warmup_steps=100 \
  >"$out/golden.log" 2>&1 || status=1
grep -E "^(start-up|golden|PyTorch|within|BEYOND|skipped)" "$out/golden.log" || tail -5 "$out/golden.log"
exit $status
