#!/usr/bin/env bash
# `trireme doctor` finds no fault on a healthy machine, however busy, and names each injected fault.
#   doctor_names_faults.sh SOURCE_FOLDER PATH_OF_trireme_on_faults PATH_OF_libfake_nvml [TIMES]
# TIMES: how often a healthy machine is checked, by default once; if more, a throttled link is also tested.
source "$(dirname "$0")/checks.sh"
fake_nvml=$3 times=${4:-1}

# doctor STATUS RANKS OPTIONS...
doctor() {
  local status=$1 ranks=$2
  shift 2
  run "$status" "$mpirun" -n "$ranks" "$trireme" doctor --device cpu --check-seconds 300 "$@"
}
# with FAULTS STATUS RANKS OPTIONS...: the same with faults of ranks (tests/mp/doctor_faults.cpp).
with() {
  export TRIREME_TEST_DOCTOR=$1
  shift
  doctor "$@"
  unset TRIREME_TEST_DOCTOR
}
# named CHECK PATTERN: checks for a finding that ends in that check's name.
named() { grep -qE "^(suspect|bad): .*$2.*\($1\)$" <<<"$output" || fail "$1: '$2' is not named" "$output"; }

echo "a healthy machine passes with one process, with ranks and with ranks on two simulated nodes; no files remain ($times times)"
for ((time = 0; time < times; ++time)); do
  run 0 "$trireme" doctor --device cpu
  has "healthy: 1 node, 1 rank"
  doctor 0 4 --full
  has "healthy: 1 node, 4 ranks"
  TRIREME_TEST_NODES=2 doctor 0 4 --full
  has "healthy: 2 nodes, 4 ranks"
done
[[ -z $(ls -A) ]] || fail "files are left behind" "$(ls -A)"

echo "--only runs a check by its name"
run 0 "$trireme" doctor --device cpu --only open_files,cpu_clock
has "1 rank, 2 checks"
run 2 "$trireme" doctor --device cpu --only open_file
run 0 "$trireme" doctor --device cpu --full --only nic_loopback
has "skipped: each node has only one rank"
doctor 0 3 --full --only nic_loopback --json
has "rank 1 ↔ rank 2"
doctor 0 2 --full --only nic_loopback,cpu_clock
has "skipped: this check runs alone"

echo "a slow copy is named with its rank"
with '2/slow-copy=300000' 40 4 --full --only peer_copies
named peer_copies 'rank 2'

echo "wrong bits in the training of a rank are detected"
with '1/wrong-bits' 41 3 --full --only repeatable_step,equal_steps
named repeatable_step 'rank 1: 1?[0-9]* bits'
named equal_steps 'rank 1: bits'
[[ $output != *"rank 0: bits"* ]] || fail "another rank is named" "$output"

# Detecting a throttled link takes minutes.
if ((times > 1)); then
  echo "a throttled link between nodes is named with its rank"
  TRIREME_TEST_NODES=4 with '2/throttled-link=2000000' 40 4 --full
  named node_links 'node2'
fi

echo "a full disk is reported"
with '0/full-disk' 41 2 --dir "$folder"
named storage_write 'File too large'

echo "a low limit of locked memory is reported"
status=0
output=$(ulimit -l 16 && timeout "$timeout_s" "$mpirun" -n 2 "$trireme" doctor --device cpu 2>&1) || status=$?
[[ $status -eq 41 ]] || fail "exit status $status, expected 41" "$output"
named locked_memory '0.0156 MiB'

echo "faulty GPUs are reported from NVML"
export TRIREME_NVML=$fake_nvml TRIREME_TEST_NVML='gpus=4'
doctor 0 1
export TRIREME_TEST_NVML='gpus=4 lanes=2:8 nvlinks=1:17 recovery=3:1'
doctor 41 1
named gpu_recovery 'GPU 3'
named gpu_pcie 'GPU 2.* 8, '
named nvlinks 'GPU 1.* 17, '
unset TRIREME_NVML TRIREME_TEST_NVML

echo "--json prints the verdict"
output=$("$mpirun" -n 2 "$trireme" doctor --device cpu --json 2>error.txt) || fail "doctor --json" "$(<error.txt)"
has '"verdict": "healthy"'
has '"status": 0'

echo "invalid arguments give status 2 and no verdict"
run 2 "$trireme" doctor --device none
run 2 "$trireme" doctor nowhere.yaml

finish
