#!/usr/bin/env bash
# Runs bench overlap and bench step --sweep layout like a user: checks structure and exit statuses, never speed.
#   bench_reports_are_whole.sh SOURCE_FOLDER PATH_OF_trireme PATH_OF_bench_json
source "$(dirname "$0")/checks.sh"
bench_json=$3

cat >tiny.yaml <<'YAML'
run: {name: tiny, device: cpu}
model: {layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 32}
data: {global_batch: 8}
parallel: {tp: 2, pp: 2}
YAML

# json STATUS RANKS ARGUMENTS...: stores standard output in out.json and the rest in $output.
json() {
  local expected=$1 ranks=$2 status=0
  shift 2
  output=$(timeout "$timeout_s" "$mpirun" -n "$ranks" "$trireme" bench "$@" --json 2>&1 >out.json) || status=$?
  [[ $status -eq $expected ]] || fail "exit status $status, expected $expected: bench $*" "$output"
}
# Prints the most bytes that `trireme check` predicts for a rank of tiny.yaml on 4 ranks with these settings.
predicted() {
  "$trireme" check tiny.yaml --ranks 4 --no-data --verbose "$@" | awk '$1 == "total" && $(NF - 1) > most {most = $(NF - 1)} END {print most}'
}

echo "a step's parts add up to it; an axis of one rank has none"
step() { # STAGES AXES RANKS ARGUMENTS...
  json 0 "$3" step tiny.yaml --steps 1 --warmup 1 --profiled 0 "${@:4}"
  "$bench_json" step "$1" "$2" <out.json || fail "the JSON of bench step ${*:4}" "$(<out.json)"
}
step 2 tp,pp 4
step 2 pp 2 --set parallel.tp=1
step 1 dp 2 --set parallel.tp=1 --set parallel.pp=1
step 1 tp 2 --set parallel.pp=1
step 1 "" 1 --set parallel.tp=1 --set parallel.pp=1
run 0 "$mpirun" -n 2 "$trireme" bench step tiny.yaml --steps 1 --warmup 1 --profiled 0 --set parallel.tp=1
has "time per step, stage 1: compute"
has "bubble of the busiest stage"
has "(pp-1)/(chunks·microbatches) = 12.5 %"

echo "a sweep lists layouts that check accepts, with the bytes that it predicts"
limit=16
[[ -z ${TRIREME_ALL_CASES:-} ]] || limit=40
json 0 4 step tiny.yaml --sweep layout --limit "$limit" --steps 1 --warmup 1
"$bench_json" sweep 4 "$limit" <out.json >layouts.txt || fail "the sweep's JSON" "$(<out.json)"
[[ $(wc -l <layouts.txt) -ge 6 ]] || fail "fewer layouts than meshes" "$(<layouts.txt)"
while read -r bytes settings; do
  # shellcheck disable=SC2086
  [[ $(predicted $settings) == "$bytes" ]] || fail "check predicts other bytes than $bytes for $settings"
done <layouts.txt

echo "all ranks of a sweep resolve the same cp"
[[ -n ${TRIREME_ALL_CASES:-} ]] || limit=6
json 0 4 step tiny.yaml --sweep layout --limit "$limit" --steps 1 --warmup 1 --set parallel.pp=1 --set parallel.cp=2
"$bench_json" sweep 4 "$limit" <out.json >layouts.txt || fail "the sweep's JSON with cp" "$(<out.json)"
grep -q "parallel.cp=2" layouts.txt || fail "no layout with cp 2" "$(<layouts.txt)"

echo "the JSON of a sweep has the layers of an uneven layout"
json 0 4 step tiny.yaml --sweep layout --limit 1 --steps 1 --warmup 1 --set parallel.layers_per_chunk=3,1
grep -q '"layers_per_chunk":\[3,1\]' out.json || fail "no layers_per_chunk" "$(<out.json)"

echo "the table of a sweep names the best layout, and --limit limits it"
run 0 "$mpirun" -n 4 "$trireme" bench step tiny.yaml --sweep layout --limit 2 --steps 1 --warmup 1
has "best: --set parallel.tp="
has "the config's own"
has "beyond --limit"

echo "the config's own layout is skipped if it does not suit the ranks; other rules still apply"
json 0 2 step tiny.yaml --sweep layout --limit 3 --steps 1 --warmup 1 --set parallel.tp=4
"$bench_json" sweep 2 3 <out.json >/dev/null || fail "the sweep's JSON" "$(<out.json)"
grep -q '"own_problem":"parallel' out.json || fail "the JSON does not report the problem of its own layout" "$(<out.json)"

echo "layouts that fail are listed with the reason"
json 7 2 step tiny.yaml --sweep layout --limit 2 --steps 1 --warmup 1 --set lr.peak=1e30
"$bench_json" sweep 2 2 <out.json >/dev/null || fail "the sweep's JSON" "$(<out.json)"
[[ $(grep -o '"problem":"the loss is not finite"' out.json | wc -l) -eq 2 ]] || fail "expected two layouts with the reason" "$(<out.json)"
has "no layout could be measured"

echo "invalid arguments of a sweep are refused"
run 2 "$trireme" bench step tiny.yaml --sweep layouts
has "layouts not in"
run 2 "$trireme" bench step tiny.yaml --limit 3
has "--limit requires --sweep"
run 2 "$trireme" bench step tiny.yaml --sweep layout --limit 0
has "--limit: 0 is not a whole number >= 1"
run 2 "$mpirun" -n 2 "$trireme" bench step tiny.yaml --sweep layout --set model.hidden=33
has "model.heads"
[[ $(grep -c 'model.heads: 4 does not divide' <<<"$output") -eq 1 ]] || fail "the error is printed more than once" "$output"
run 4 "$mpirun" -n 2 "$trireme" bench step tiny.yaml --sweep layout --set model.hidden=262144 --set model.layers=1024
has "fits into"

echo "overlap shows every axis with several ranks for all models and settings"
overlap() { # AXES RANKS ARGUMENTS...
  json 0 "$2" overlap tiny.yaml --rounds 2 "${@:3}"
  "$bench_json" overlap "$1" <out.json || fail "the JSON of bench overlap ${*:3}" "$(<out.json)"
}
overlap tp,dp,pp 8 --set parallel.dp_transfers=copies
for layer in "qkv forward" "proj forward" "fc1 forward" "fc2 forward" "qkv weight, fc2 backward" "fc1 backward, fc2 weight" "fc1 weight, proj backward" "qkv backward, proj weight"; do
  grep -q "\"compute\":\"$layer\"" out.json || fail "no $layer" "$(<out.json)"
done
while read -r axis transfer; do
  grep -o '{[^{}]*}' out.json | grep "\"axis\":\"$axis\"" | grep -q "\"transfer\":\"$transfer" ||
    fail "no $transfer over $axis" "$(<out.json)"
done <<END
tp gather by copies, 2 splits
tp reduce by copies, 1 split
dp reduce by copies, 1 split
dp gather by copies, 1 split
pp send and receive
END
overlap tp,dp 4 --set parallel.pp=1 --set model.block=parallel --set model.activation=swiglu --set model.position=rope \
  --set model.norm=rmsnorm --set precision.compute=bf16 --set parallel.zero=2 --set parallel.recompute=full
grep -q '"transfer":"reduce-scatter"' out.json || fail "dp copies where tp copies too" "$(<out.json)"
overlap tp,pp 4 --set parallel.overlap_tp=false --set parallel.overlap_pp=false --set parallel.recompute=selective \
  --set model.kv_heads=2 --set model.bias=false --set parallel.schedule=interleaved --set parallel.chunks=2
grep -q '"transfer":"all-gather"' out.json || fail "overlap_tp off still gathers in splits" "$(<out.json)"
overlap dp 2 --set parallel.tp=1 --set parallel.pp=1 --set parallel.zero=0 --set parallel.overlap_dp=false
grep -q '"transfer":"all-reduce"' out.json || fail "zero 0 without an all-reduce" "$(<out.json)"

echo "overlap prints a table, and no rows for one rank"
run 0 "$mpirun" -n 4 "$trireme" bench overlap tiny.yaml --rounds 1
has "hidden"
json 0 1 overlap tiny.yaml --set parallel.tp=1 --set parallel.pp=1
[[ $(<out.json) == "[]" ]] || fail "rows of one rank" "$(<out.json)"
run 0 "$trireme" bench overlap tiny.yaml --set parallel.tp=1 --set parallel.pp=1
has "no axis has more than one rank"

echo "invalid arguments of overlap are refused"
run 2 "$trireme" bench overlap tiny.yaml --rounds none
has "--rounds"
run 2 "$mpirun" -n 3 "$trireme" bench overlap tiny.yaml
has "3 ranks"
run 2 "$mpirun" -n 2 "$trireme" bench overlap nowhere.yaml
has "nowhere.yaml"
[[ ! -e runs ]] || fail "a bench left a folder"

finish
