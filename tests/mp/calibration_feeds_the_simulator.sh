#!/usr/bin/env bash
# calibration_feeds_the_simulator SOURCE TRIREME: `bench calibrate` on CPU ranks writes a cluster file that `simulate`
# and `plan` read, with an uncertainty; mistakes end with status 2 and their remedy. How good the prediction is, a busy
# machine can't say: no bound here.
set -euo pipefail
source_dir=$1 trireme=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "calibration_feeds_the_simulator: $*" >&2
  exit 1
}
config=$source_dir/configs/quickstart.yaml

"$source_dir"/slurm/mpirun -n 4 "$trireme" bench calibrate "$config" --set parallel.dp=1 --set data.global_batch=16 \
  --steps 2 --rounds 1 --output "$work/here.yaml" >"$work/table"
grep -q 'blind' "$work/table" || fail "no blind row: $(cat "$work/table")"
grep -Eq '^uncertainty: (0\.[0-9]+|1$)' "$work/here.yaml" || fail "no uncertainty: $(cat "$work/here.yaml")"

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
grep -q 'did you mean software.gemm_share?' "$work/error" || fail "no remedy: $(cat "$work/error")"
echo "calibration_feeds_the_simulator: passed"
