#!/usr/bin/env bash
# A rank that throws, fails inside a stream, is killed, exits or never starts ends the whole job, with its own status
# and message, printed once: where it is first detected, before destructors that wait for the other ranks.
#   ends_when_a_rank_fails.sh PATH_OF_mpirun PATH_OF_ends
#   TRIREME_TEST_DEVICE=cuda: on two GPUs
set -u
mpirun=$1 program=$2 failures=0
folder=$(mktemp -d)
# What killed ranks leave in shared memory is removed with the test.
shared=$(mktemp -d /dev/shm/trireme-test.XXXXXX 2>/dev/null || mktemp -d)
export TRIREME_BLACK_BOXES=$shared
export OMPI_MCA_btl_vader_backing_directory=$shared OMPI_MCA_osc_sm_backing_directory=$shared
trap 'rm -rf "$folder" "$shared"' EXIT

# expect RANKS END STATUS TEXT: the job ends by itself (a hang reaches the limit, status 124); one line has the text.
expect() {
  local output status=0 lines
  output=$(timeout 600 "$mpirun" ${options[@]+"${options[@]}"} -n "$1" "$program" "$2" "$folder" 2>&1) || status=$?
  lines=$(grep -cF -- "$4" <<<"$output")
  if [[ $status -ne $3 ]]; then
    echo "$2: exit status $status, expected $3"
  elif [[ -n $4 && $lines -ne 1 ]]; then
    echo "$2: $lines lines contain '$4':"
  else
    echo "$2: status $status"
    return
  fi
  echo "$output"
  failures=$((failures + 1))
}

host=$(hostname)
options=()
if [[ ${TRIREME_TEST_DEVICE:-cpu} == cpu ]]; then # needs four ranks, and a stream's task that is a function
  expect 4 none 0 ""
  expect 4 throw 4 "rank 1 on $host: the device of rank 1 has burnt"
  expect 4 task 3 "rank 1 on $host: a task of rank 1 broke"
  expect 4 stopped 4 "rank 1 on $host: rank 1 can't go on alongside a stopped one"
  expect 4 kill 137 "exited on signal 9"
  expect 4 exit 9 ""
  expect 4 alike 4 "no rank can go on"
  # The first rank to end the job is not the first that failed: status and final message are those of the cause.
  expect 2 avalanche 4 "first cause: rank 1 on $host: avalanche: rank 1 can't go on"
fi
expect 2 none 0 ""
for end in forward backward update evaluation shutdown; do
  expect 2 "$end" 4 "rank 1 on $host: $end: rank 1 can't go on"
done
expect 2 checkpoint 4 "rank 0 on $host: checkpoint: rank 0 can't go on"
for end in group inference-group; do expect 2 "$end" 5 "rank 1 on $host: MPI_"; done
expect 2 absent 5 "of ranks 0, 1: not connected after 1 s (fault.connect_seconds)"
# Uses a launcher that lets the others continue when one is gone; it then exits with 0, whatever their status.
options=(--enable-recovery)
expect 2 kill 0 "was killed by signal 9 (SIGKILL)"
# Two threads of rank 0 end the job: the hook, which writes the run's files, runs once.
expect 2 gone 0 "the failure hook runs"

# mpirun may end before the last rank.
deadline=$((SECONDS + 600))
ranks="^$program [a-z-]+ $folder$" # other tests run the program too
while pgrep -f "$ranks" >/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
if pgrep -f "$ranks" >/dev/null; then
  echo "ranks are still alive:"
  pgrep -af "$ranks"
  failures=$((failures + 1))
fi
exit "$failures"
