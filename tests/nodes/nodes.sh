#!/usr/bin/env bash
# A cluster of names on one machine, on which `trireme supervise --hosts` starts processes:
#   nodes.sh agent NODE COMMAND...           the agent of a node
#   nodes.sh ranks NODE,NODE... COMMAND...   two ranks on each node
# A node with a file NODES/NODE has no power: nothing starts there.
#   NODES    a folder
#   MPIRUN   the command that starts ranks
# Programs linked with host.cpp use the node's name as that of their machine; NODES/NODE.nvml contains the faults of its
# GPUs (tests/nvml/fake.cpp). A fault that happens once has happened if the file TRIREME_TEST_STRUCK exists.
set -euo pipefail
kind=$1 nodes=$2
shift 2
on() { # NODE COMMAND...
  export SLURMD_NODENAME=$1 TRIREME_TEST_HOST=$1 TRIREME_TEST_NVML_FILE=$NODES/$1.nvml
  shift
  if [[ -e ${TRIREME_TEST_STRUCK:-} ]]; then unset TRIREME_TEST_HANG TRIREME_TEST_STORAGE_RULES; fi
  exec "$@"
}
IFS=, read -ra names <<<"$nodes"
if [[ $kind == rank ]]; then on "${names[OMPI_COMM_WORLD_RANK / 2]}" "$@"; fi
for name in "${names[@]}"; do
  if [[ -e $NODES/$name ]]; then
    echo "$name does not answer" >&2
    exit 1
  fi
done
case $kind in
  agent) on "$nodes" "$@" ;;
  ranks) exec "$MPIRUN" -n $((2 * ${#names[@]})) "$0" rank "$nodes" "$@" ;;
  *) exit 2 ;;
esac
