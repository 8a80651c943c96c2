#!/usr/bin/env bash
# A rank that throws, breaks inside a stream, is killed or leaves ends the whole job, with its own status and words.
#   ends_when_a_rank_fails.sh PATH_OF_MPIRUN PATH_OF_ends
set -u
mpirun=$1 program=$2 failures=0

# expect END STATUS TEXT: the job ends by itself (a hang runs into the limit, status 124).
expect() {
  local output status=0
  output=$(timeout 600 "$mpirun" -n 4 "$program" "$1" 2>&1) || status=$?
  if [[ $status -ne $2 ]]; then
    echo "$1: exit status $status, expected $2"
    echo "$output"
    failures=$((failures + 1))
  elif [[ $output != *"$3"* ]]; then
    echo "$1: does not say '$3':"
    echo "$output"
    failures=$((failures + 1))
  else
    echo "$1: status $status"
  fi
}

expect none 0 ""
expect throw 4 "the device of rank 1 has burnt"
expect task 3 "a task of rank 1 broke"
expect kill 137 "signal 9"
expect exit 9 ""
# mpirun may be gone before the last rank.
deadline=$((SECONDS + 600))
while pgrep -f "^$program" >/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
if pgrep -f "^$program" >/dev/null; then
  echo "ranks are left:"
  pgrep -af "^$program"
  failures=$((failures + 1))
fi
exit "$failures"
