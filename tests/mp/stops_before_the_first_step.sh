#!/usr/bin/env bash
# Stop signals before the first step: while MPI starts, while a checkpoint loads, and with storage that hangs then. Also
# signals for output without a reader, and for files at their size limit.
#   stops_before_the_first_step.sh SOURCE_FOLDER PATH_OF_trireme
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 1000000, eval_batches: 0, sample_tokens: 0}
model: {layers: 2, hidden: 32, heads: 4, vocab: 257, seq_len: 32}
data: {sources: [text], global_batch: 8}
parallel: {tp: 1, pp: 1, dp: 2}
lr: {peak: 1e-2}
checkpoint: {every: 5, every_minutes: 0}
YAML
make_text

# in_program RANK: checks that the process runs the executable, which first installs the handlers; stores it in $rank.
in_program() {
  rank=$(pid_of "$1")
  [[ -n $rank && $(readlink "/proc/$rank/exe") == "$(readlink -f "$trireme")" ]] &&
    [[ $((0x$(sed -n 's/^SigCgt:\t*//p' "/proc/$rank/status" 2>/dev/null) >> 14 & 1)) -eq 1 ]]
}

echo "a signal at any moment of a start gives status 75 on all ranks"
moment=0
for signal in TERM USR1 USR2 INT TERM USR1; do
  start "at_$moment" 2
  until_true in_program 1
  sleep "0.$moment"
  kill -"$signal" "$rank"
  end_of "at_$moment" 75
  moment=$((moment + 1))
done

echo "mpirun passes USR1 on to all ranks"
start passed 2
until_true in_program 0
until_true in_program 1
kill -USR1 "$job"
end_of passed 75

echo "a signal during the search for a checkpoint gives status 75, whether storage answers or not"
starts() { [[ $(grep -c '"kind":"begin"' run/events.jsonl) -ge $1 ]]; }
train 0 run 2 run.steps=10
manifest=run/checkpoints/step_00000010/manifest.json
mv "$manifest" kept.json
mkfifo "$manifest" # opening it for reading waits
num_starts=1
for answers in yes no; do
  num_starts=$((num_starts + 1))
  start run 2 "fault.grace_seconds=$([[ $answers == yes ]] && echo 100 || echo 3)"
  until_true starts "$num_starts" && until_true in_program 1 && kill -TERM "$rank"
  [[ $answers == no ]] || timeout "$timeout_s" cp kept.json "$manifest"
  end_of run 75
done
rm "$manifest"
mv kept.json "$manifest"
train 0 run 2 run.steps=12
has "resumed from run/checkpoints/step_00000010"

echo "a file that exceeds the size limit fails the checkpoint and does not kill the rank"
(
  ulimit -f 4096
  run 3 "$trireme" train tiny.yaml --set run.dir=limited --set parallel.dp=1 --set model.hidden=256 --set run.steps=30
  has "File too large"
  exit "$failures"
) || failures=$((failures + 1))

echo "if the reader of the output exits, neither ranks, nor the driver, nor an export end"
# read_once NAME COMMAND...: sends the output to a reader that exits after one line.
read_once() {
  ("${@:2}" --set "run.dir=$1" --set run.steps=20 2>&1; echo $? >"$1.status") | head -n 1
  [[ $(<"$1.status") == 0 ]] || fail "$1, whose reader has exited: status $(<"$1.status")"
}
read_once trained "$trireme" train tiny.yaml --set parallel.dp=1
read_once supervised "$trireme" supervise tiny.yaml --launcher "$mpirun -n 2"
("$trireme" checkpoint export trained exported 2>&1; echo $? >exported.status) | true
[[ $(<exported.status) == 0 && -s exported/config.json ]] || fail "export without a reader: status $(<exported.status)"

finish
