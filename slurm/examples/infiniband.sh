#!/usr/bin/env bash
# Submits runs to nodes with several InfiniBand cards, one next to each GPU or pair of GPUs, each on a rail of its own:
# card i of every node hangs on the i-th group of switches. Check the lines marked with <--, then:
#
#   slurm/examples/infiniband.sh configs/llama_8b.yaml -N 4 --partition=gpu    # arguments of slurm/submit.sh
#
# sbatch hands this environment on to the job (--export=ALL, its default). What you have set already stays, and
# slurm/env.sh adds what holds for every fabric, such as the timeout for a link that flaps (NCCL_IB_TIMEOUT).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
default() { [[ -n ${!1+set} ]] || export "$1=$2"; }

# --- Rails: NCCL, which moves tensors ---------------------------------------------------------------------------------
# Only the cards of the compute fabric: `ibdev2netdev` or `ls /sys/class/infiniband` lists all, including those of
# storage. "=" matches exact names; otherwise mlx5_1 would match mlx5_10 as well.
default NCCL_IB_HCA =mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1 # <--
# A ring enters and leaves a node on the same rail, so that nothing crosses the spine that need not. 1 where all cards
# hang on one switch; 2, NCCL's default, lets it choose.
default NCCL_CROSS_NIC 0
# A message that has to change rails goes over NVLink to the GPU next to the right card first: NCCL's default, which a
# site's /etc/nccl.conf may have turned off.
default NCCL_PXN_DISABLE 0
# Card and GPU memory without the host between, where both hang on one PCIe switch. With nvidia-peermem or dma-buf the
# log of NCCL_DEBUG=INFO says "GDRDMA"; if it does not, PHB and SYS allow longer ways, which may be slower than none.
default NCCL_NET_GDR_LEVEL PXB
# The interface by which NCCL's ranks find each other; tensors never take it. "=" as above. IP over InfiniBand is fine
# too.
default NCCL_SOCKET_IFNAME =eth0 # <--

# --- Open MPI, by UCX: start and control messages ---------------------------------------------------------------------
# One card is enough for them, and each card more is memory that every rank pins: rc is a reliable connection; self
# and sm stay inside the node.
default UCX_TLS self,sm,rc
default UCX_NET_DEVICES mlx5_0:1 # <--
# From 500 ranks on dc (dynamically connected) keeps a few connections where rc keeps one a peer: UCX_TLS=self,sm,dc.

# --- The run ----------------------------------------------------------------------------------------------------------
# A card of 400 Gb/s a GPU sends 50 GB/s: what `trireme check` estimates with.
exec "$here/../submit.sh" "$@" --set cluster.ranks_per_node=8 --set cluster.network_gb_per_s=50 # <--
