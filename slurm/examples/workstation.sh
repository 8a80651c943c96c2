#!/usr/bin/env bash
# Trains on one machine without Slurm, with one rank per GPU, and restarts automatically after a fault (a killed run, or
# status 4 to 6), which costs the steps since the newest checkpoint. Ctrl-C saves a checkpoint first (a second one does
# not wait); the same command resumes from it.
#
#   slurm/examples/workstation.sh CONFIG [--set section.key=value]...
#   RANKS=8 slurm/examples/workstation.sh my.yaml                     # 8 ranks on the hardware present, here the CPU
#
# TRIREME names the executable if it is not the one that was built or installed together with this script.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) # the repository or, if installed, PREFIX/share/trireme
if (($# == 0)) || [[ $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi
default() { [[ -n ${!1+set} ]] || export "$1=$2"; }
trireme=${TRIREME:-$root/build/bin/trireme}
[[ -n ${TRIREME:-} || -x $trireme ]] || trireme=$root/../../bin/trireme

# The config's mesh determines the number of ranks; if parallel.dp is 0, there is one rank per GPU.
ranks=${RANKS:-} mesh=(--get parallel.tp --get parallel.pp --get parallel.dp)
if [[ -z $ranks ]] && sizes=$("$trireme" check "$@" "${mesh[@]}" 2>/dev/null); then
  ranks=$((${sizes//$'\n'/*}))
elif [[ -z $ranks ]]; then
  ranks=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU') || {
    "$trireme" check "$@" || true # prints what is wrong with the config, if anything
    echo "workstation.sh: nvidia-smi lists no GPU; set RANKS to the number of ranks to start" >&2
    exit 2
  }
fi

# Numbers GPUs in the order of the PCI bus, as nvidia-smi does; by default CUDA puts the fastest first.
default CUDA_DEVICE_ORDER PCI_BUS_ID
# Desktop boards have no NVLink, and if the GPUs are attached to two CPUs, copies between them may be slower than
# through the host: SYS allows them everywhere, PHB within one CPU. This script keeps NCCL's own choice; to force one,
# set NCCL_P2P_LEVEL=PHB. NCCL finds its peers over the loopback, so that an unplugged cable ends no run.
default NCCL_SOCKET_IFNAME lo
default NCCL_DEBUG WARN
# Messages between processes of one machine need only shared memory.
default OMPI_MCA_btl self,vader
default OMPI_MCA_pml ob1

# Ranks wait for each other by polling, which is fastest. If there are more ranks than hardware threads, they must
# yield, as with slurm/mpirun. That script is not called, since a launcher is split at blanks and its path may contain
# some.
if ((ranks > $(nproc))); then
  default OMPI_MCA_mpi_yield_when_idle 1
  default OPENBLAS_NUM_THREADS 1
  default OMP_NUM_THREADS 1
fi
if (($(id -u) == 0)); then # mostly in a container
  default OMPI_ALLOW_RUN_AS_ROOT 1
  default OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
  default OMPI_MCA_btl_vader_single_copy_mechanism none # it would try process_vm_readv, often forbidden there
fi
# Open MPI's slots are cores, which may be fewer than threads. Threads may run on any core: a workstation has few, and
# the kernel keeps threads near their memory.
exec "$trireme" supervise "$@" --ranks "$ranks" --launcher "mpirun -n $ranks --oversubscribe --bind-to none"
