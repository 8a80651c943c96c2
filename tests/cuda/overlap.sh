#!/usr/bin/env bash
# On a machine with four GPUs: prints the tables of lib/bench/measurements/four_gpus.md; complete outputs go to OUT_DIR.
#   tests/cuda/overlap.sh BUILD_DIR OUT_DIR      SECTIONS="hidden layouts ablation": of these; 175b: its row of layouts
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
trireme=$1/bin/trireme out=$2 status=0
mkdir -p "$out"
wide="configs/gpt_13b.yaml --set run.device=cuda --set parallel.recompute=none"
of() { # TP PP DP MICRO_BATCH
  echo "--set parallel.tp=$1 --set parallel.pp=$2 --set parallel.dp=$3 --set data.micro_batch=$4"
}
chunks() { echo "--set parallel.schedule=interleaved --set parallel.chunks=$1"; }
gpt_175b="--set model.hidden=12288 --set model.heads=96 --set model.layers=4"
file() { echo "$out/$(tr -cs 'a-zA-Z0-9\n' _ <<<"$1").txt"; }
step() { # NAME ARGUMENTS...
  local text
  text=$(file "$1")
  # shellcheck disable=SC2086
  timeout "${LIMIT:-120}" slurm/mpirun -n 4 "$trireme" bench step $wide --profiled 0 "${@:2}" >"$text" 2>&1 || status=1
  echo "$1: $(grep -m1 'tokens/s' "$text" | cut -d: -f2- || tail -1 "$text")"
  grep -E '^(time per step|bubble)' "$text" | sed 's/^/    /'
}
hidden() { # NAME ARGUMENTS...
  local text
  text=$(file "$1")
  # shellcheck disable=SC2086
  timeout "${LIMIT:-120}" slurm/mpirun -n 4 "$trireme" bench overlap $wide --set data.global_batch=16 "${@:2}" >"$text" 2>&1 ||
    status=1
  echo "$1"
  grep -E '^(axis|tp|dp|pp) ' "$text" || tail -1 "$text"
}
# shellcheck disable=SC2046,SC2086
{
  for section in ${SECTIONS:-hidden layouts ablation}; do
    case $section in
      hidden)
        hidden "13B tp 4" $(of 4 1 1 4) --set model.layers=8
        hidden "175B tp 4" $(of 4 1 1 4) $gpt_175b
        hidden "13B dp 4" $(of 1 1 4 4) --set model.layers=4
        hidden "13B pp 4, 2 chunks" $(of 1 4 1 4) $(chunks 2) --set model.layers=8
        ;;
      layouts) # 13B whole, 131k tokens per step; 175B: 65k
        whole="--steps 2 --warmup 1 --set data.global_batch=64"
        step "dp 4" $whole $(of 1 1 4 2) --set parallel.recompute=selective
        step "tp 2 dp 2" $whole $(of 2 1 2 8)
        step "tp 4" $whole $(of 4 1 1 16)
        step "pp 2 dp 2, 4 chunks" $whole $(of 1 2 2 2) $(chunks 4)
        step "tp 2 pp 2, 4 chunks" $whole $(of 2 2 1 4) $(chunks 4)
        step "pp 4, 2 chunks" $whole $(of 1 4 1 2) $(chunks 2)
        step "pp 4, 5 chunks" $whole $(of 1 4 1 2) $(chunks 5)
        ;;&
      layouts | 175b)
        step "175B shape, 4 layers, tp 4" $(of 4 1 1 4) $gpt_175b --set data.global_batch=32 --steps 5 --warmup 2
        ;;
      ablation) # 13B's width, 8 layers; each row changes one thing in the previous row
        short="--warmup 2 --set model.layers=8 --set data.global_batch=32"
        row="$(of 2 2 1 2) $(chunks 2)"
        off_dp="--set parallel.overlap_dp=false"
        off_pp="--set parallel.overlap_pp=false --set parallel.pp_transfers=messages $off_dp"
        off="--set parallel.overlap_tp=false $off_pp"
        plain="--set run.gemm_search=false --set model.attention=builtin"
        step "base" --steps 6 $short $row $off $plain
        row+=" --set model.block=parallel"
        step "+ parallel block" --steps 6 $short $row $off $plain
        row+=" --set model.window=1024"
        step "+ sliding window 1024" --steps 6 $short $row $off $plain
        step "+ tp overlap" --steps 6 $short $row $off_pp $plain
        step "+ pp overlap" --steps 6 $short $row $off_dp $plain
        of_dp="$(of 2 1 2 2) --set model.block=parallel --set model.window=1024" # dp takes the ranks of pp
        step "the same, tp 2 dp 2" --steps 6 $short $of_dp $off_dp $plain
        step "+ dp overlap, tp 2 dp 2" --steps 6 $short $of_dp $plain
        step "+ operators, tp 2 dp 2" --steps 6 $short $of_dp
        step "+ LAMB, 4 x batch, tp 2 dp 2" --steps 3 $short $of_dp --set optimizer.name=lamb \
          --set data.global_batch=128
        ;;
    esac
  done
}
exit $status
