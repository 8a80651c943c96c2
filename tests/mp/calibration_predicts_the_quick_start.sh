#!/usr/bin/env bash
# calibration_predicts_the_quick_start SOURCE TRIREME [TIMES]: `bench calibrate` fits the simulator to smaller variants
# of the quick start on its 8 ranks and predicts its own step, which took no part in the fit: within 10 % of what the
# same call measured, in the middle one of TIMES calls (3). On a machine with nothing else to do: `make soak-predict`.
set -euo pipefail
source_dir=$1 trireme=$2 times=${3:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for ((i = 0; i < times; i++)); do
  "$source_dir"/slurm/mpirun -n 8 "$trireme" bench calibrate "$source_dir/configs/quickstart.yaml" \
    --output "$work/here.yaml" >"$work/table"
  grep -E 'blind|uncertainty' "$work/table"
  # "the config itself   MEASURED   PREDICTED   ERROR%   SCATTER%   blind"
  awk '/blind/ {error = $(NF - 2); sub("%", "", error); print error < 0 ? -error : error + 0}' "$work/table" >>"$work/errors"
done
[[ $(wc -l <"$work/errors") == "$times" ]] || {
  echo "calibration_predicts_the_quick_start: not one blind row a call: $(cat "$work/table")" >&2
  exit 1
}
middle=$(sort -g "$work/errors" | sed -n "$(((times + 1) / 2))p")
awk -v error="$middle" 'BEGIN {exit !(error <= 10)}' || {
  echo "calibration_predicts_the_quick_start: the middle one of $times errors is $middle %, more than 10 %" >&2
  exit 1
}
echo "calibration_predicts_the_quick_start: passed, middle error $middle %"
