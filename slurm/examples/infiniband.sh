#!/usr/bin/env bash
# Submits runs to nodes with several InfiniBand cards, one near each GPU or pair of GPUs, each on its own rail: card i
# of every node is attached to the i-th group of switches. Check the lines marked with <--, then:
#
#   slurm/examples/infiniband.sh my.yaml -N 4 --partition=gpu    # arguments of slurm/submit.sh
#
# sbatch passes this environment to the job (--export=ALL, its default). Variables that you have set keep their values,
# and slurm/env.sh adds settings for every fabric, such as the timeout for a link that flaps (NCCL_IB_TIMEOUT).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
default() { [[ -n ${!1+set} ]] || export "$1=$2"; }

# --- Rails: NCCL, which moves tensors ---------------------------------------------------------------------------------
# Only the cards of the compute fabric: `ibdev2netdev` or `ls /sys/class/infiniband` lists all, including those of
# storage. "=" matches exact names; otherwise mlx5_1 would match mlx5_10 as well.
default NCCL_IB_HCA =mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1 # <--
# A ring enters and leaves a node on the same rail, which avoids needless traffic over the spine. Use 1 if all cards are
# attached to one switch; with 2, NCCL's default, NCCL chooses.
default NCCL_CROSS_NIC 0
# A message that must change rails first goes over NVLink to the GPU next to the right card: NCCL's default, which a
# site's /etc/nccl.conf may have turned off.
default NCCL_PXN_DISABLE 0
# The card accesses GPU memory directly if both are attached to one PCIe switch. With nvidia-peermem or dma-buf the log
# of NCCL_DEBUG=INFO contains "GDRDMA"; if it does not, PHB and SYS allow longer paths, which may be slower than none.
default NCCL_NET_GDR_LEVEL PXB
# The interface through which NCCL's ranks find each other; tensors never use it. "=" as above. IP over InfiniBand also
# works.
default NCCL_SOCKET_IFNAME =eth0 # <--

# --- Open MPI, by UCX: start and control messages ---------------------------------------------------------------------
# One card suffices for them, and every further card costs memory that each rank pins. rc is a reliable connection; self
# and sm stay inside the node.
default UCX_TLS self,sm,rc
default UCX_NET_DEVICES mlx5_0:1 # <--
# Above 500 ranks dc (dynamically connected) has a few connections where rc has one per peer: UCX_TLS=self,sm,dc.

# --- The run ----------------------------------------------------------------------------------------------------------
# One 400 Gb/s card per GPU sends 50 GB/s; `trireme check` uses this value.
exec "$here/../submit.sh" "$@" --set cluster.ranks_per_node=8 --set cluster.network_gb_per_s=50 # <--
