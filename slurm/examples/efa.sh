#!/usr/bin/env bash
# Submits runs to instances with Elastic Fabric Adapters (AWS p4d, p5 and similar, with ParallelCluster). NCCL uses them
# through the plugin aws-ofi-nccl and libfabric, which the machine-learning images contain. Check the lines marked with
# <--, then:
#
#   slurm/examples/efa.sh my.yaml -N 4 --partition=p5    # arguments of slurm/submit.sh
#
# sbatch passes this environment to the job (--export=ALL, its default). Variables that you have set keep their values.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
default() { [[ -n ${!1+set} ]] || export "$1=$2"; }

# --- NCCL, which moves tensors ----------------------------------------------------------------------------------------
# The folders of the plugin and of libfabric, where NCCL looks for libnccl-net.so.
export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # <--
# Without the plugin, NCCL would silently use TCP, which is far slower; with this name it fails instead. NCCL_DEBUG=INFO
# prints the name after "Using network"; it depends on the plugin's version.
default NCCL_NET "AWS Libfabric" # <--
# Selects only this provider of libfabric.
default FI_PROVIDER efa
# The adapter reads and writes GPU memory directly. p5 does so by default, p4d needs this setting.
default FI_EFA_USE_DEVICE_RDMA 1
# The interface through which NCCL's ranks find each other; tensors never use it. Excludes docker's and the loopback.
default NCCL_SOCKET_IFNAME ^docker,lo,veth # <--
# NCCL_PROTO and NCCL_ALGO stay unset: the plugin has a tuner, and LL128 is not safe on every instance type.

# --- Open MPI: start and control messages -----------------------------------------------------------------------------
# UCX has no transport for EFA, so these small messages use Open MPI's own TCP (ob1).
default OMPI_MCA_pml ob1
default OMPI_MCA_btl_tcp_if_exclude lo,docker0 # <--

# --- The run ----------------------------------------------------------------------------------------------------------
# p5: 3200 Gb/s for 8 GPUs are 50 GB/s each; p4d: 400 Gb/s are 6.25. `trireme check` uses this value. With --spares 1 a
# spare node can replace a failed one.
exec "$here/../submit.sh" "$@" --set cluster.ranks_per_node=8 --set cluster.network_gb_per_s=50 # <--
