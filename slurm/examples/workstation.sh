#!/usr/bin/env bash
# Trains on one machine without Slurm, a rank a GPU, and goes on by itself after a fault: what killed the run, status
# 4 to 6, costs the steps since its newest checkpoint. Ctrl-C saves a checkpoint first (a second one does not wait);
# the same command goes on from it.
#
#   slurm/examples/workstation.sh CONFIG [--set section.key=value]...
#   RANKS=8 slurm/examples/workstation.sh my.yaml                     # 8 ranks on whatever there is, here on the CPU
#
# TRIREME names the executable, if it is not the one that was built or installed together with this script.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) # of the repository or, installed, PREFIX/share/trireme
if (($# == 0)) || [[ $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi
default() { [[ -n ${!1+set} ]] || export "$1=$2"; }
trireme=${TRIREME:-$root/build/bin/trireme}
[[ -n ${TRIREME:-} || -x $trireme ]] || trireme=$root/../../bin/trireme

# The config's mesh says how many ranks; where it leaves parallel.dp to their number (0), a rank a GPU.
ranks=${RANKS:-} mesh=(--get parallel.tp --get parallel.pp --get parallel.dp)
if [[ -z $ranks ]] && sizes=$("$trireme" check "$@" "${mesh[@]}" 2>/dev/null); then
  ranks=$((${sizes//$'\n'/*}))
elif [[ -z $ranks ]]; then
  ranks=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU') || {
    "$trireme" check "$@" || true # its words
    echo "workstation.sh: no GPU is seen, so RANKS has to say how many ranks to start" >&2
    exit 2
  }
fi

# GPU k in the order of the PCI bus, as nvidia-smi shows them; by default CUDA puts the fastest first.
default CUDA_DEVICE_ORDER PCI_BUS_ID
# Boards for desktops have no NVLink, and where GPUs hang on two CPUs copies between them may be slower than through
# the host: SYS tries them everywhere, PHB within one CPU. NCCL's own choice is left alone; to force one:
# NCCL_P2P_LEVEL=PHB. NCCL finds its peers over the loopback, so that a cable that is pulled out ends no run.
default NCCL_SOCKET_IFNAME lo
default NCCL_DEBUG WARN
# Messages between processes of one machine need shared memory alone.
default OMPI_MCA_btl self,vader
default OMPI_MCA_pml ob1

# Ranks wait for each other by polling, which is fastest; where there are more than hardware threads, they must yield,
# as slurm/mpirun has them do. That script is not called: a launcher's words end at blanks, and its path may have some.
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
# Open MPI's slots are cores, of which there may be fewer than threads. Threads may run on any core: a workstation has
# few, and the kernel keeps them near their memory.
exec "$trireme" supervise "$@" --ranks "$ranks" --launcher "mpirun -n $ranks --oversubscribe --bind-to none"
