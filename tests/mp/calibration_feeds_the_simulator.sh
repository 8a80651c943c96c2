#!/usr/bin/env bash
# calibration_feeds_the_simulator.sh SOURCE TRIREME: `bench calibrate` on CPU ranks writes a cluster file with which
# `simulate` reports the same as the calibration about the measured config, including the uncertainty, and which `plan`
# reads; mistakes end with status 2 and a remedy. The accuracy is not checked, because the machine may be busy.
set -euo pipefail
source_dir=$1 trireme=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "calibration_feeds_the_simulator: $*" >&2
  exit 1
}
config=$source_dir/configs/quickstart.yaml

settings=(--set parallel.dp=1 --set data.global_batch=16)
"$source_dir"/slurm/mpirun -n 4 "$trireme" bench calibrate "$config" "${settings[@]}" --steps 2 --rounds 1 --json \
  --output "$work/here.yaml" >"$work/rows"
# number FILE KEY [ROW]: prints the first number of that key after ROW's name.
number() {
  sed -n "s/.*${3:-}.*\"$2\":\([-0-9.e+]*\).*/\1/p" <(sed 's/[{}]/\n/g' "$1") | head -n 1
}
for row in 'half of the batch' 'half of the layers' 'half of the sequence' 'half of the micro-batch'; do
  grep -q "\"step_of\":\"$row\",\"fitted\":true" "$work/rows" || fail "$row is not among the fitted rows: $(cat "$work/rows")"
done
[[ $(grep -o '"fitted":false' "$work/rows" | wc -l) == 1 ]] || fail "expected one blind row: $(cat "$work/rows")"
# near A B: succeeds if both differ by at most a thousandth.
near() {
  awk -v a="$1" -v b="$2" 'BEGIN {exit !(a + 0 > 0 && (a - b) ^ 2 <= (1e-3 * b) ^ 2)}'
}
whole=$(number "$work/rows" predicted_s 'the config itself') uncertainty=$(number "$work/rows" uncertainty)
"$trireme" simulate "$config" --ranks 4 --cluster "$work/here.yaml" "${settings[@]}" --set precision.compute=fp32 \
  --set run.device=cpu --json >"$work/json"
near "$(number "$work/json" step_s)" "$whole" ||
  fail "the file predicts another step time than the fit, $whole s: $(cat "$work/json")"
near "$(number "$work/json" uncertainty)" "$uncertainty" ||
  fail "expected the uncertainty $uncertainty: $(cat "$work/json")"
awk -v u="$uncertainty" 'BEGIN {exit !(u + 0 > 0 && u + 0 <= 1)}' || fail "an uncertainty of $uncertainty"

"$trireme" simulate "$config" --ranks 8 --cluster "$work/here.yaml" --set precision.compute=fp32 --json >"$work/json"
for word in step_s uncertainty tp_exposed bubble effective; do
  grep -q "\"$word\":" "$work/json" || fail "no $word: $(cat "$work/json")"
done
"$trireme" plan "$config" --ranks 8 --cluster "$work/here.yaml" --output "$work/best.yaml" >"$work/plan"
"$trireme" check "$work/best.yaml" --ranks 8 --no-data >/dev/null || fail "the planned config does not pass check"

status=0
sed 's/gemm_share/gemm_shares/' "$work/here.yaml" >"$work/bad.yaml"
"$trireme" simulate "$config" --ranks 8 --cluster "$work/bad.yaml" 2>"$work/error" || status=$?
[[ $status == 2 ]] || fail "status $status for an unknown key"
grep -q 'did you mean software.gemm_share?' "$work/error" || fail "the message has no remedy: $(cat "$work/error")"
echo "calibration_feeds_the_simulator: passed"
