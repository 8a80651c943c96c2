#!/usr/bin/env bash
# No alarm without a hang: during checkpoints, evaluations, samples, at low priority, or when the whole job is suspended
# for longer than a step's deadline. SIGQUIT to one rank makes all ranks write records and changes nothing else.
#   never_alarms_without_a_hang.sh SOURCE_FOLDER PATH_OF_trireme [CONFIG STEPS SUSPENDED DEADLINE]
# CONFIG: for eight ranks; by default a tiny one. SUSPENDED, DEADLINE of a step: seconds.
source "$(dirname "$0")/checks.sh"
config=${3:-} steps=${4:-75} suspended=${5:-12} deadline=${6:-10}

make_text
cat >tiny.yaml <<'YAML'
run: {name: tiny, device: cpu}
model: {layers: 4, hidden: 16, heads: 2, vocab: 257, seq_len: 16}
data: {sources: [text], global_batch: 8, micro_batch: 1, tokenizer: bytes}
parallel: {tp: 2, pp: 2, dp: 2}
lr: {peak: 1e-2}
YAML
[[ -z $config ]] || cp "$config" tiny.yaml
# Rare enough for a long run, frequent enough for a short one.
often=$((steps / 25))
settings=("data.sources=[text]" "run.steps=$steps" "run.eval_every=$often" run.eval_batches=2
  "run.sample_every=$((2 * often))" run.sample_tokens=2 "checkpoint.every=$often" checkpoint.keep_last=2
  "fault.step_seconds=$deadline")
export TRIREME_BLACK_BOXES=$folder
printf '#!/bin/sh\nexec nice -n 10 "%s" "$@"\n' "$mpirun" >nice_mpirun
chmod +x nice_mpirun
# The run may take long. This test is about hangs, which end by themselves.
timeout_s=100000

echo "a job suspended for $suspended s raises no alarm: the step deadline of $deadline s counts only the time in which it may run"
mpirun=./nice_mpirun start suspended 8 "${settings[@]}"
until_true steps_done suspended 1
ranks=()
for rank in {0..7}; do ranks+=("$(pid_of "$rank")"); done
kill -STOP "${ranks[@]}"
sleep "$suspended"
before=$(wc -l <suspended/metrics.jsonl)
[[ $before -lt $steps ]] || fail "the run ended before it was suspended"
kill -CONT "${ranks[@]}"
end_of suspended 0
[[ ! -e suspended/hang ]] || fail "a false alarm" "$output"

echo "SIGQUIT to one rank dumps the records of all ranks, and the run continues"
mpirun=./nice_mpirun start dumped 8 "${settings[@]}"
until_true steps_done dumped 1
rank=$(pid_of 3)
kill -QUIT "$rank"
reports() { find dumped/hang -mindepth 2 -name report.json 2>/dev/null; }
has_report() { [[ -n $(reports) ]]; }
until_true has_report
end_of dumped 0
dump=$(dirname "$(reports)")
[[ -d $dump ]] || fail "expected one dump" "$(reports)"
for rank in {0..7}; do
  [[ -s $dump/rank_0000$rank.json ]] || fail "no record of rank $rank" "$(ls "$dump")"
done
[[ $(curve dumped) == "$(curve suspended)" ]] || fail "the losses differ"

finish
