#!/usr/bin/env bash
# Storage stalls one file that a run writes: the run ends with 0 and the same losses, and nothing is blamed.
#   storage_stalls_block_no_step.sh SOURCE_FOLDER PATH_OF_trireme    trireme is built with tests/storage/points.cpp
#   storage_stalls_block_no_step.sh SOURCE_FOLDER PATH_OF_trireme SEED SECONDS...
#     the second form stalls every file, one at a time, at a random write, for each number of seconds
source "$(dirname "$0")/checks.sh"
seconds=("${@:4}")
RANDOM=${3:-1}

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 60, eval_every: 20, eval_batches: 1, sample_every: 30, sample_tokens: 4, device: cpu}
model: {layers: 2, hidden: 16, heads: 2, vocab: 257, seq_len: 16}
data: {sources: [text], global_batch: 4, tokenizer: bytes}
parallel: {dp: 2}
lr: {peak: 1e-2}
checkpoint: {every: 10}
metrics: {ranks_every: 5, timeline: "12:15"}
YAML
make_text
train 0 plain 2 metrics.prometheus_file=plain/figures.prom
curve plain >plain.curve
[[ $(wc -l <plain.curve) -eq 60 ]] || fail "the undisturbed run does not have 60 steps" "$(cat plain.curve)"

blames_nothing() { # DIR
  [[ ! -e $1/hang ]] || fail "$1: a hang was reported" "$(cat "$1"/hang/*/report.txt 2>/dev/null)"
  ! grep -E '"kind":"(hang|failure|exclusion)"' "$1/events.jsonl" || fail "$1: events.jsonl blames a rank"
  curve "$1" | cmp -s - plain.curve || fail "$1: the losses differ" "$(curve "$1" | diff - plain.curve | head -n 6)"
}

if ((${#seconds[@]} == 0)); then
  echo "while writes hang that no step waits for, steps continue; the run ends with 0 when they return"
  export TRIREME_TEST_STORAGE=$folder/held
  TRIREME_TEST_STORAGE_RULES="0/@tfevents/9/hold=$folder/go 0/@ranks.h5/9/hold=$folder/go 0/@trace/1/hold=$folder/go"
  TRIREME_TEST_STORAGE_RULES+=" 1/@trace/1/hold=$folder/go 0/@figures/3/hold=$folder/go"
  TRIREME_TEST_STORAGE_RULES+=" 0/@events.jsonl/4/hold=$folder/go"
  export TRIREME_TEST_STORAGE_RULES
  start held 2 metrics.prometheus_file=held/figures.prom checkpoint.every=1000 run.steps=1000000
  until_true steps_done held 300
  touch go
  kill -TERM "$(pid_of 0)"
  end_of held 75
  [[ ! -e held/hang ]] || fail "a hang was reported" "$output"
  [[ $(find held/tensorboard -name '*tfevents*' | wc -l) -eq 1 ]] || fail "more than one event file" "$(ls held/tensorboard)"
  curve held | head -n 60 | cut -d' ' -f1 | cmp -s - <(seq 60) || fail "steps are missing" "$(curve held | head)"
  unset TRIREME_TEST_STORAGE TRIREME_TEST_STORAGE_RULES
  finish
fi

# Every file that a run writes, the ranks that write it, and the highest write number for the random choice.
files=(metrics.jsonl:0:60 log.txt:0:20 events.jsonl:0:8 tfevents:0:60 ranks.h5:0:20 figures.prom:0:2 trace:0:3 trace:1:3
  shard_00000:0:9 shard_00001:1:9 checkpoint.h5:0:5 manifest:0:3 latest:0:2 resolved.yaml:0:2 config.yaml:0:2)
at_a_time=${JOBS:-4}
stall() { # FILE RANK NUMBER SECONDS: one run, in its own folder
  local dir status=0
  dir=stall_$(tr -dc 'a-z0-9' <<<"$1")_$2_$4
  TRIREME_TEST_STORAGE=$folder/$dir TRIREME_TEST_STORAGE_RULES="$2/@$1/$3/sleep=$4" TRIREME_TEST_STRUCK=$folder/$dir.struck \
    "$mpirun" -n 2 "$trireme" train tiny.yaml --set "run.dir=$dir" --set "metrics.prometheus_file=$dir/figures.prom" \
    >"$dir.txt" 2>&1 || status=$?
  echo "$status" >"$dir.status"
}
for length in "${seconds[@]}"; do
  dirs=()
  for entry in "${files[@]}"; do
    IFS=: read -r file rank most <<<"$entry"
    number=$((RANDOM % most + 1))
    echo "$file of rank $rank, write $number, ${length} s"
    while (($(jobs -rp | wc -l) >= at_a_time)); do wait -n || true; done
    stall "$file" "$rank" "$number" "$length" &
    dirs+=("stall_$(tr -dc 'a-z0-9' <<<"$file")_${rank}_$length")
  done
  wait
  for dir in "${dirs[@]}"; do
    [[ $(cat "$dir.status") == 0 ]] || fail "$dir: exit status $(cat "$dir.status")" "$(tail -n 20 "$dir.txt")"
    [[ -e $dir.struck ]] || echo "$dir: the run has fewer writes"
    blames_nothing "$dir"
  done
done
finish
