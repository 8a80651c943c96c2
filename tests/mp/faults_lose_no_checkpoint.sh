#!/usr/bin/env bash
# Runs in difficult situations lose no saved checkpoint: two runs in one folder, failing storage, and stops with too
# little time.
#   faults_lose_no_checkpoint.sh SOURCE_FOLDER PATH_OF_trireme    trireme is built with tests/storage/points.cpp
source "$(dirname "$0")/checks.sh"

cat >tiny.yaml <<'YAML'
run: {name: tiny, steps: 1000000, eval_batches: 0, sample_tokens: 0, device: cpu}
model: {layers: 2, hidden: 16, heads: 2, vocab: 257, seq_len: 16}
data: {sources: [text], global_batch: 2, tokenizer: bytes}
lr: {peak: 1e-2, decay_steps: 1000000}
checkpoint: {every: 5}
YAML
make_text
host=$(hostname)
newest() { find "$1/checkpoints" -regex ".*/step_[0-9]+" -printf "%f\n" 2>/dev/null | sort | tail -1; } # "latest" may name the one before
has_checkpoint() { [[ -n $(newest "$1") ]]; }

echo "of two runs in one folder, the second is refused with status 3 and the owner's name; the first is not disturbed"
start shared 2
until_true has_checkpoint shared
holder=$(pid_of 0)
cp shared/config.yaml config.before
train 3 shared 2 lr.peak=1e-3
has "shared/run.lock: the run folder is in use by process $holder on $host"
cmp -s config.before shared/config.yaml || fail "the refused run changed config.yaml"
train 3 shared 1 # on another layout
has "in use by process $holder on $host"
until_true steps_done shared $(($(wc -l <shared/metrics.jsonl) + 10))

echo "another run with the same checkpoint.dir is also refused, and both are named"
train 3 intruder 2 "checkpoint.dir=$folder/shared/checkpoints"
has "shared/checkpoints/checkpoint.lock: checkpoint.dir is in use by run $folder/shared, process $holder on $host"
has "so run $folder/intruder cannot use it"

echo "if the owner of the lock is killed, the next start takes the lock over and resumes the run"
kill -KILL "$holder"
end_of shared 137
step=$(newest shared)
train 0 shared 2 "run.steps=$((10#${step#step_} + 3))"
has "taken over from process $holder on $host"
has "resumed from shared/checkpoints/$step:"
train 0 shared 2 run.steps=3 # released properly, so there is nothing to take over
[[ $output != *"taken over"* ]] || fail "a released lock is reported as taken over" "$output"

# drive DIR LAUNCHER: sets $drive to the command that supervises a run in DIR.
drive() { drive=("$trireme" supervise tiny.yaml --ranks 2 --launcher "$2" --set "run.dir=$1"); }
start_driver() {
  drive "$1" "$2"
  "${drive[@]}" >"$1.txt" 2>&1 &
  job=$!
}
attempts() { grep -c '"kind":"attempt_start"' "$1/events.jsonl"; }

echo "a second driver is refused with the first one's name, and so is a manual run; the first is not disturbed"
start_driver driven "$mpirun -n 2"
until_true has_checkpoint driven
driver=$job
run 3 "${drive[@]}"
has "driven/supervise.lock: the run is already supervised by process $driver on $host"
train 3 driven 2
has "driven/run.lock: the run folder is in use by process"
until_true steps_done driven $(($(wc -l <driven/metrics.jsonl) + 10))
[[ $(attempts driven) -eq 1 ]] || fail "the first driver's ranks were disturbed" "$(<driven.txt)"

echo "if the driver is killed, another one takes the run over and ends its processes, and no node is excluded"
kill -KILL "$driver"
end_of driven 137
start_driver driven "$mpirun -n 2"
goes_on() { [[ $(attempts driven) -eq 2 ]] && steps_done driven $((before + 10)); }
before=$(wc -l <driven/metrics.jsonl)
until_true goes_on
# The driver takes a lock whose file was removed, and refuses another driver as before.
rm driven/supervise.lock
taken_again() { grep -q "supervise.lock: the lock file was removed or replaced while this run held it; the lock was taken again" driven.txt; }
until_true taken_again
run 3 "${drive[@]}"
has "driven/supervise.lock: the run is already supervised by process $job on $host"
kill -TERM "$job"
end_of driven 75
has "taken over from process $driver on $host"
run 0 "$trireme" supervise --nodes driven
[[ -z $output ]] || fail "excluded: $output"

echo "between two attempts, a manual run is also refused"
start_driver waiting "sleep 1000"
has_attempt() { [[ -s $1/events.jsonl && $(attempts "$1") -ge 1 ]]; }
until_true has_attempt waiting
train 3 waiting 2
has "waiting/supervise.lock: the run is supervised by process $job on $host"
kill -TERM "$job"
end_of waiting 75

echo "a driver is refused while ranks train that no driver started, and it ends none of them"
start alone 2
until_true has_checkpoint alone
holder=$(pid_of 0)
drive alone "$mpirun -n 2"
run 3 "${drive[@]}"
has "alone/run.lock: the run folder is in use by process $holder on $host"
has "which was not started by a driver of this run"
until_true steps_done alone $(($(wc -l <alone/metrics.jsonl) + 10))
kill -TERM "$(pid_of 0)"
end_of alone 75

echo "a restarted batch job replaces its earlier start, which publishes no further checkpoint"
for restart in 0 1; do # only the ranks believe that they are in a batch job, not mpirun
  printf '#!/bin/sh\nexport SLURM_JOB_ID=4711 SLURM_RESTART_COUNT=%s\nexec "%s" "$@"\n' "$restart" "$trireme" >"start$restart"
  chmod +x "start$restart"
done
trireme=./start0 start again 2 checkpoint.max_failures=1
until_true has_checkpoint again
grep -q "Slurm job: 4711, restart 0" again/log.txt || fail "log.txt does not name the batch job" "$(head -n 5 again/log.txt)"
step=$(newest again)
trireme=./start1 train 0 again 2 "run.steps=$((10#${step#step_} + 20))" checkpoint.every=1000
has "an earlier start of job 4711"
end_of again 3
has "failed (1 consecutive failure)" # its files are gone, or it detects the loss of the lock

echo "if storage fails, this is reported and training continues; after repeated failures it ends with status 3"
export TRIREME_TEST_STORAGE=$folder/full/checkpoints TRIREME_TEST_STORAGE_RULES="0/shard/1/fail=ENOSPC+"
train 3 full 4 parallel.tp=2 parallel.pp=2 checkpoint.every=2 checkpoint.max_failures=3
has "failed (3 consecutive failures)"
[[ $(curve full | wc -l) -ge 6 ]] || fail "training did not continue after a failure" "$output"

echo "a checkpoint's folder that cannot be created is one failure, of rank 0, however many ranks there are"
export TRIREME_TEST_STORAGE=$folder/refused/checkpoints TRIREME_TEST_STORAGE_RULES="0/begin/2/fail=EACCES+"
train 3 refused 4 parallel.tp=2 parallel.pp=2 checkpoint.every=2 checkpoint.max_failures=1
has "failed (1 consecutive failure)"
has $'\n  rank 0: refused/checkpoints/'
for rank in 1 2 3; do lacks $'\n'"  rank $rank: "; done

echo "log.txt contains the error that ended a rank, with its rank and host"
mkdir tokens && cp text.bin text.idx tokens
export TRIREME_TEST_STORAGE=$folder/tokens TRIREME_TEST_STORAGE_RULES="1/read/200/fail=EACCES+"
train 3 fatal 2 data.sources=[tokens/text] data.shared=false parallel.dp=2 checkpoint.every=0
message="\[rank 1 on $host, pp0 dp1 tp0\] error: .*tokens/text.bin: .*Permission denied"
grep -q "$message" <<<"$output" || fail "rank 1 does not report what ended it" "$output"
grep -q "$message" fatal/log.txt || fail "log.txt does not report what ended rank 1" "$(cat fatal/log.txt)"
unset TRIREME_TEST_STORAGE TRIREME_TEST_STORAGE_RULES

echo "if checkpoints cannot be listed, the run ends and does not start over; it resumes when they can be listed"
train 0 unlisted 2 run.steps=12
export TRIREME_TEST_STORAGE=$folder/unlisted/checkpoints TRIREME_TEST_STORAGE_RULES="0/list/1/fail=EACCES+"
train 3 unlisted 2 run.steps=14
has "unlisted/checkpoints: listing the folder: Permission denied"
unset TRIREME_TEST_STORAGE TRIREME_TEST_STORAGE_RULES
train 0 unlisted 2 run.steps=14
has "resumed from unlisted/checkpoints/step_00000012:"

# on_storage RULES STATUS DIR RANKS SETTINGS...: trains on storage that obeys the rules.
on_storage() {
  export TRIREME_TEST_STORAGE=$folder/$3/checkpoints TRIREME_TEST_STORAGE_RULES=$1
  train "${@:2}"
  unset TRIREME_TEST_STORAGE TRIREME_TEST_STORAGE_RULES
}

echo "a single storage error while a stopped run saves only delays it"
export TRIREME_TEST_STORAGE=$folder/glitch/checkpoints
export TRIREME_TEST_STORAGE_RULES="0/begin/2/fail=EIO 1/shard-fsync/1/fail=ESTALE 0/publish/1/fail=EIO 0/latest/1/fail=EIO"
start glitch 2 checkpoint.every=0
until_true steps_done glitch 3
kill -TERM "$(pid_of 1)"
end_of glitch 75
[[ $(grep -c "trying again in" <<<"$output") -eq 4 ]] || fail "expected a retry after each of four errors" "$output"
has "the checkpoint is saved"
unset TRIREME_TEST_STORAGE TRIREME_TEST_STORAGE_RULES
[[ -n $(newest glitch) ]] || fail "no checkpoint was saved" "$output"

echo "a failed save gives 75 if the error is transient and an older checkpoint exists, else 3"
train 0 fails 2 run.steps=5
on_storage "1/shard-fsync/1/fail=EIO+" 75 fails 2 run.steps=8
has "(tried 5 times)"
has "re-run the job; it resumes from the checkpoint of step 5, and the steps after that ARE LOST"
on_storage "1/shard-fsync/1/fail=ENOSPC+" 3 fails 2 run.steps=8
lacks "re-run the job"
train 0 fails 2 run.steps=8
has "resumed from fails/checkpoints/step_00000005:"

echo "a rank on a node without its mount waits; if the mount stays away, the status is 75, and no older checkpoint is used instead"
train 0 mount 2 run.steps=10
on_storage "1/read/1/fail=ENOENT" 0 mount 2 run.steps=12
has "trying again in"
has "resumed from mount/checkpoints/step_00000010:"
on_storage "1/read/1/fail=ENOENT+" 75 mount 2 run.steps=14
has "rank 1: "
has "re-run the job when storage is available on all nodes"
lacks "skipped"
train 0 mount 2 run.steps=14
has "resumed from mount/checkpoints/step_00000012:"

echo "if storage hangs, the run ends fault.grace_seconds after the signal and reports what is lost"
export TRIREME_TEST_STORAGE=$folder/hangs/checkpoints TRIREME_TEST_STORAGE_RULES="1/shard-fsync/2/hold=$folder/never"
start hangs 2 fault.grace_seconds=2
until_true steps_done hangs 15 # the checkpoint of step 10 never ends, and that of step 15 waits for it
kill -TERM "$(pid_of 0)" "$(pid_of 1)"
end_of hangs 75
has "the run has not ended 2 s after the stop signal"
has "the steps after 5, the newest checkpoint, up to 15 ARE LOST"
grep -q "ARE LOST" hangs/log.txt || fail "log.txt does not say so"
unset TRIREME_TEST_STORAGE
train 0 hangs 2 run.steps=12
has "resumed from hangs/checkpoints/step_00000005:"

echo "a second SIGINT ends a run immediately, whatever it waits for; the first one and SIGTERM do not"
export TRIREME_TEST_STORAGE=$folder/twice/checkpoints TRIREME_TEST_STORAGE_RULES="1/shard-fsync/2/hold=$folder/never"
start twice 2 fault.grace_seconds=0 # no limit
until_true steps_done twice 15      # it hangs there, as above
rank=$(pid_of 0)
# was_taken SIGNAL: checks that none is pending; two of a kind would count as one.
was_taken() { ((!(16#$(awk '$1 == "ShdPnd:" {print $2}' "/proc/$rank/status") >> ($(kill -l "$1") - 1) & 1))); }
for signal in TERM INT; do
  kill -"$signal" "$rank"
  until_true was_taken "$signal"
done
kill -0 "$rank" || fail "one SIGINT ended the run"
kill -INT "$rank"
end_of twice 130
unset TRIREME_TEST_STORAGE

echo "fault.grace_seconds also applies if the signal reaches only one rank and if a peer hangs"
for rank in 0 1; do
  start silent 2 fault.grace_seconds=1
  until_true has_checkpoint silent
  other=$(pid_of $((1 - rank)))
  kill -STOP "$other"
  kill -USR1 "$(pid_of "$rank")"
  end_of silent 75
  has "ARE LOST"
  rm -r silent
done

echo "if the duration of the last checkpoint leaves no time for another one, only the current one is completed"
export TRIREME_TEST_STORAGE=$folder/short/checkpoints TRIREME_TEST_STORAGE_TRACE=$folder/trace
export TRIREME_TEST_STORAGE_RULES="0/publish/1/sleep=12 0/publish/2/hold=$folder/go"
start short 2 checkpoint.every=5000 fault.grace_seconds=11
second_is_held() { [[ $(grep -c ^publish trace.0 2>/dev/null) -eq 2 ]]; }
says() { grep -q "$1" "$2"; }
until_true second_is_held
kill -USR2 "$(pid_of 1)"
until_true says "only the checkpoint of step 10000, which is being written, is completed" short.txt
touch go
end_of short 75
has "there was no time to save a checkpoint, so the steps after 10000 ARE LOST"
[[ $(newest short) == step_00010000 ]] || fail "the newest checkpoint is $(newest short)"
unset TRIREME_TEST_STORAGE TRIREME_TEST_STORAGE_TRACE
train 0 short 2 run.steps=10003
has "resumed from short/checkpoints/step_00010000:"

finish
