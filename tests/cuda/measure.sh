#!/usr/bin/env bash
# On a machine with a GPU: builds, runs the GPU tests, prints the speed of the shapes in the README's table.
#   tests/cuda/measure.sh [BUILD_DIR]      TESTS=0: only measures
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${1:-build-gpu}
cmake -S . -B "$build" -G Ninja -DTRIREME_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" --target trireme test_cuda export_run >>"$build.log" 2>&1 || { tail -50 "$build.log"; exit 1; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1
if [[ ${TESTS:-1} == 1 ]]; then
  TRIREME_EXPECT_GPU=1 "$build/bin/test_cuda" 2>&1 | grep -E "^\[|Failure|operand|actual|skipped" | grep -v -E "RUN|OK \]" | head -60
fi
step() {
  slurm/mpirun -n 1 "$build/bin/trireme" bench step "configs/$1" --set run.device=cuda --set data.global_batch="$2" \
    --set data.micro_batch="$2" "${@:3}" 2>&1
}
SHAPES=${SHAPES:-"124m 1b3 1558m 13b 175b llama8k llama2k"}
for shape in $SHAPES; do
  case $shape in
    124m) step gpt2_124m.yaml 64 --steps 40 ;;
    1b3) step gpt_1b3.yaml 8 --set parallel.recompute=none ;;
    1558m) step gpt2_1558m.yaml 16 --set parallel.recompute=none ;;
    13b) step gpt_13b.yaml 4 --set model.layers=4 --set parallel.tp=1 --set parallel.pp=1 --set parallel.recompute=none ;;
    175b) step megascale_175b.yaml 2 --set model.layers=2 --set model.heads=96 --set model.vocab=50304 \
      --set model.window=0 --set model.block=sequential --set parallel.tp=1 --set parallel.pp=1 --set parallel.chunks=1 \
      --set parallel.schedule=1f1b --set parallel.recompute=none --set parallel.zero=1 ;;
    llama8k) step llama_8b.yaml 1 --set model.layers=8 --set parallel.tp=1 --set parallel.recompute=none ;;
    llama2k) step llama_8b.yaml 4 --set model.layers=8 --set model.seq_len=2048 --set parallel.tp=1 --set parallel.recompute=none ;;
  esac
done
