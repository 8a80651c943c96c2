#!/usr/bin/env bash
# calibration_predicts_the_quick_start SOURCE TRIREME [TIMES]: `bench calibrate` fits the simulator to smaller variants
# of the quick start on its 8 ranks and predicts the quick start's step, which is not part of the fit. The median error
# of TIMES calls (3) is within 10 % of the same call's measurement. Requires an idle machine: `make soak-predict`.
set -euo pipefail
source_dir=$1 trireme=$2 times=${3:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "calibration_predicts_the_quick_start: $*" >&2
  exit 1
}

# Prints the absolute error of every blind row: "the config itself   MEASURED   PREDICTED   ERROR%   SCATTER%   blind".
errors() {
  awk '$NF == "blind" {error = $(NF - 2); sub("%", "", error); error += 0; print error < 0 ? -error : error}'
}
# Prints the median of the errors on standard input.
middle() {
  sort -g | awk '{errors[NR] = $1} END {print errors[int((NR + 1) / 2)]}'
}
within() {
  awk -v error="$1" 'BEGIN {exit !(error != "" && error + 0 <= 10)}'
}

# Checks the functions above: they detect errors in both directions and compare numbers, not texts.
made_up() {
  printf 'the config itself  100.00  %s  %s  5.0%%  blind\n' "$2" "$1"
  printf 'half of the batch  50.00  90.00  +80.0%%  1.0%%  fitted\n'
}
[[ $(made_up +12.5% 112.50 | errors) == 12.5 && $(made_up -12.5% 87.50 | errors) == 12.5 ]] || fail "errors are misread"
[[ $(printf '2.8\n11.5\n9.1\n' | middle) == 9.1 ]] || fail "the median is wrong"
! within 12.5 || fail "12.5 % is accepted"
! within "" || fail "a missing error is accepted"
within 9.9 || fail "9.9 % is refused"

for ((i = 0; i < times; i++)); do
  "$source_dir"/slurm/mpirun -n 8 "$trireme" bench calibrate "$source_dir/configs/quickstart.yaml" \
    --output "$work/here.yaml" >"$work/table"
  grep -E 'blind|uncertainty' "$work/table"
  errors <"$work/table" >>"$work/errors"
done
[[ $(wc -l <"$work/errors") == "$times" ]] || fail "expected one blind row per call: $(cat "$work/table")"
middle=$(middle <"$work/errors")
within "$middle" || fail "the median of $times errors is $middle %, more than 10 %"
echo "calibration_predicts_the_quick_start: passed, median error $middle %"
