# shellcheck shell=bash
# Environment of a training job on a Slurm cluster; slurm/train.sbatch sources it before srun. Each value is a default:
# a variable that you or your site's modules have set keeps its value.

default() { [[ -n ${!1+set} ]] || export "$1=$2"; }

# --- Open MPI: starts the ranks, carries control messages; on a CPU cluster also the data -----------------------------
default OMPI_MCA_pml ucx
# By default Open MPI uses UCX only on InfiniBand and RoCE; `any` also allows TCP and transports inside a node.
default OMPI_MCA_pml_ucx_tls any
default OMPI_MCA_pml_ucx_devices any
# Excludes the old InfiniBand transport, which UCX replaces and which would warn about every card.
default OMPI_MCA_btl ^openib

# --- UCX --------------------------------------------------------------------------------------------------------------
# MPI transfers only host memory (NCCL transfers device memory), and without CUDA transports UCX creates no CUDA
# context. If there is no NVIDIA device, UCX has no such transports, and every rank would print a warning. UCX selects
# the best of the others. To pin the choice, set UCX_TLS=self,sm,rc or, with only Ethernet, UCX_TLS=self,sm,tcp; to pin
# the cards, set UCX_NET_DEVICES=mlx5_0:1.
[[ ! -e /dev/nvidiactl ]] || default UCX_TLS ^cuda

# --- NCCL: a link that flaps ------------------------------------------------------------------------------------------
# A lost packet is retransmitted after 4.096 us * 2^NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT times, before NCCL fails. With 22
# and 7 (the largest values that cards support) NCCL tolerates a port that is down for a minute or two; with its own
# default it fails within seconds. The trainer's watchdog must have a longer timeout than that.
default NCCL_IB_TIMEOUT 22
default NCCL_IB_RETRY_CNT 7

# --- NCCL: which way the data goes ------------------------------------------------------------------------------------
# Nothing is set, because NCCL reads the topology. Sites may set:
#   NCCL_SOCKET_IFNAME=eth0           interface for NCCL's start-up, if the first one found is the wrong one
#   NCCL_IB_HCA=mlx5_0,mlx5_1         cards of the compute fabric, if some belong to storage
#   NCCL_IB_GID_INDEX=3  NCCL_IB_TC=106    RoCE: address (v2) and traffic class that the switches expect
#   NCCL_IB_QPS_PER_CONNECTION=4      RoCE: several connections per pair, which switches spread over equal paths
#   NCCL_CROSS_NIC=0                  rail-optimised fabric: a ring stays on one rail
# GPUDirect RDMA (the card accesses GPU memory directly) needs the nvidia-peermem module or dma-buf. It is in use if
# NCCL_DEBUG=INFO prints "via NET/IB/0/GDRDMA". NCCL uses it if card and GPU share a PCIe switch; NCCL_NET_GDR_LEVEL=PHB
# also allows it through the CPU's root port, SYS everywhere, LOC nowhere.
default NCCL_DEBUG WARN

# --- Ranks, GPUs and cores --------------------------------------------------------------------------------------------
# Rank k of a node uses GPU k. In the order of the PCI bus GPU k is close to the k-th share of the node's cores, which
# srun's binding in train.sbatch gives to the rank.
default CUDA_DEVICE_ORDER PCI_BUS_ID
# A rank has its own threads; a library that starts one thread per core would compete with them.
default OMP_NUM_THREADS 1
default OPENBLAS_NUM_THREADS 1
# RDMA registers memory and fails with a low limit on locked memory. Raise the limit as far as the site allows.
ulimit -l unlimited 2>/dev/null || ulimit -l "$(ulimit -H -l)" 2>/dev/null || true
# Core files of all ranks would fill the disk.
ulimit -c 0

unset -f default
