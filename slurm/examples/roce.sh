#!/usr/bin/env bash
# Submits runs to nodes whose cards use RoCE v2, RDMA over Ethernet. Ethernet loses packets unless switches and cards
# are configured as lossless: ask your site for the lines marked with <--, then:
#
#   slurm/examples/roce.sh my.yaml -N 4 --partition=gpu    # arguments of slurm/submit.sh
#
# sbatch passes this environment to the job (--export=ALL, its default). Variables that you have set keep their values,
# and slurm/env.sh adds settings for every fabric.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
default() { [[ -n ${!1+set} ]] || export "$1=$2"; }

# --- NCCL, which moves tensors ----------------------------------------------------------------------------------------
# Only the cards of the compute network, by exact names (=); `ibdev2netdev` shows which interface belongs to which card.
default NCCL_IB_HCA =mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7 # <--
# Selects one of a card's addresses: RoCE v2 over IPv4 is often number 3 (`show_gids`). NCCL 2.21 and later finds it if
# this is -1, the default; older versions use 0, RoCE v1, which routers drop.
default NCCL_IB_GID_INDEX 3 # <--
# Traffic class: the priority whose queue the switches keep lossless (PFC, ECN). 106 is DSCP 26, which many sites use;
# by default packets enter the queue that all traffic shares and are lost if it is full.
default NCCL_IB_TC 106 # <--
# Switches select a packet's path by hashing its addresses and ports: one connection uses one path, and two large ones
# may share a link. Several connections per pair spread over equal paths; `trireme simulate --network` shows the effect.
default NCCL_IB_QPS_PER_CONNECTION 4
# Each of them carries a share of every message, not every n-th message whole.
default NCCL_IB_SPLIT_DATA_ON_QPS 1
# A ring enters and leaves a node through one card if cards have separate switches; use 1 if they share one.
default NCCL_CROSS_NIC 0
# The interface through which NCCL's ranks find each other; tensors never use it.
default NCCL_SOCKET_IFNAME =eth0 # <--

# --- Open MPI, by UCX: start and control messages ---------------------------------------------------------------------
# These messages are small: TCP on the management network keeps them off the lossless queue. To use RDMA:
# UCX_TLS=self,sm,rc with UCX_NET_DEVICES=mlx5_0:1, UCX_IB_GID_INDEX=3 and UCX_IB_TRAFFIC_CLASS=106.
default UCX_TLS self,sm,tcp
default UCX_NET_DEVICES eth0 # <--

# --- The run ----------------------------------------------------------------------------------------------------------
# 200 Gb/s per GPU are 25 GB/s; `trireme check` uses this value. A port may flap for two minutes (NCCL_IB_TIMEOUT in
# slurm/env.sh), on some cards four times as long, which the watchdog must not report as a hang.
exec "$here/../submit.sh" "$@" --set cluster.ranks_per_node=8 --set cluster.network_gb_per_s=25 \
  --set fault.step_seconds=600 # <--
