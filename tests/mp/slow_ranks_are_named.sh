#!/usr/bin/env bash
# A rank that is slower than its peers is named, with its times in ranks.h5, in the log, in events.jsonl and on the map;
# no rank of a slow stage is named. Measuring changes no loss, and a killed run's file is continued.
#   slow_ranks_are_named.sh SOURCE_FOLDER PATH_OF_trireme_on_hangs [PERCENT WINDOW ROUNDS HIDDEN]
# PERCENT: the extra time of slow ranks; large by default, since the machine may be busy. WINDOW: steps. ROUNDS: number
# of times that every rank in turn is slow, and no other may be named; with 0, the default, one rank is slow once and
# others may be named, since a shared machine does slow ranks down. HIDDEN: width of the model; to detect small
# differences its GEMMs must dominate, since in a tiny model the first tp ranks, which have all the tokens, are slower.
source "$(dirname "$0")/checks.sh"
percent=${3:-200} window=${4:-12} rounds=${5:-0} hidden=${6:-64}
steps=$((3 * window))
export TRIREME_BLACK_BOXES=$folder OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

make_text
cat >tiny.yaml <<YAML
run: {name: tiny, device: cpu, steps: $steps}
model: {layers: 2, hidden: $hidden, heads: 2, vocab: 257, seq_len: $((2 * hidden))}
data: {sources: [text], global_batch: 8, micro_batch: 1, tokenizer: bytes}
parallel: {tp: 2, pp: 2, dp: 2}
lr: {peak: 1e-4} # some processors are many times slower with subnormal numbers, and some ranks more than others
checkpoint: {every: 0}
metrics: {ranks_every: $window}
YAML
stragglers() { sed -n 's/.*"kind":"straggler","rank":\([0-9]*\),.*/\1/p' "$1/events.jsonl" | sort -un | tr '\n' ' '; }

echo "a slow rank of eight is named with its host within three windows of $window steps"
named() {
  TRIREME_TEST_SLOW=$1/compute/$percent train 0 "$2" 8
  local who
  who=$(stragglers "$2")
  if [[ " $who" != *" $1 "* ]] || { [[ $rounds -gt 0 ]] && [[ $who != "$1 " ]]; }; then
    output=$(grep '^{"ranks":' "$2/metrics.jsonl"; cat "$2/events.jsonl"; "$trireme" status "$2" --heat compute)
    fail "named: '$who', slow: $1" "$output"
    return
  fi
  has "rank $1 [pp"
  has "longer than its peers of stage"
  has " without it" # the step time without it, or that it would be no shorter, as on a busy machine
}
named 5 slow
[[ $(grep -c '^{"ranks":' slow/metrics.jsonl) -eq 3 ]] || fail "expected three windows" "$(cat slow/metrics.jsonl)"
run 0 "$trireme" status slow --heat compute
has "tp0"
# 10 % may be measured as 9, which does not stand out on a map.
[[ $percent -lt 15 ]] || has "rank 5 [pp1 dp0 tp1] on"
run 0 "$trireme" status slow --heat compute --json
[[ $percent -lt 15 ]] || has '"rank":5,'
run 2 "$trireme" status slow --heat warmth
has "launch_skew"
for ((round = 0; round < rounds; ++round)); do
  for rank in {0..7}; do named "$rank" "slow_${round}_$rank"; done
done

echo "no rank of a slow stage is named"
TRIREME_TEST_SLOW=0,1,2,3/compute/$percent train 0 stage 8
[[ $rounds -eq 0 || -z $(stragglers stage) ]] || fail "named: $(stragglers stage)" "$output"

echo "without measurements the losses are the same and there is no file; a slow rank does not change losses either"
train 0 off 8 metrics.ranks_every=0
[[ ! -e off/ranks.h5 ]] || fail "a run without measurements wrote ranks.h5"
run 3 "$trireme" status off --heat compute
[[ $(curve off) == "$(curve slow)" && $(curve off) == "$(curve stage)" && -n $(curve off) ]] || fail "the losses differ"

echo "a killed run that restarts has both attempts in one file"
start killed 8 run.steps=100000
has_window() { grep -q '^{"ranks":' killed/metrics.jsonl 2>/dev/null; }
until_true has_window
kill -KILL "$(pid_of 0)"
end_of killed 137
train 0 killed 8
run 0 "$trireme" status killed --heat forward
has "steps $((2 * window + 1))-$steps"
[[ ! -e killed/ranks.h5.damaged ]] || fail "the killed run left a damaged file"

finish
