#!/usr/bin/env python3
"""Measures PyTorch's context parallelism under torchrun: all GPUs process parts of the same sample of a LLaMA, whose
weights FSDP2 shards over them.

    torchrun --standalone --nproc-per-node N context_peer.py cudnn|flash SHAPE

The mode is the attention kernel. bf16 parameters, fp32 reductions and fp32 master weights; the blocks are compiled
except for attention, which context_parallel replaces and whose key/value heads are repeated for their queries; no step
clips gradients. SHAPE has a batch of 1.
"""
import os

from shape import arguments, need, report

mode, shape = arguments()
torch, dist, device_mesh = need("torch", "torch.distributed", "torch.distributed.device_mesh")
import torch.nn.functional as F
import torch_models
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

if shape.kind != "llama" or shape.batch != 1:
    raise SystemExit("context_peer.py supports only LLaMA models and one sample")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mesh = device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
torch.manual_seed(0)
backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[mode]

torch_models.loss_of = torch.compile(torch_models.loss_of)
with torch.device("cuda"):
    model = torch_models.model_of(shape)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    block.compile()
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
tokens, targets = torch_models.samples(shape)
for tensor in (tokens, targets):
    dist.broadcast(tensor, 0)


def step():
    loss = model(tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


tables = [model.blocks[0].cos, model.blocks[0].sin]  # shared by all blocks
buffers = [tokens, targets, *tables]
with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers=set(buffers)):
    ring = F.scaled_dot_product_attention

    @torch.compiler.disable
    def attention(q, k, v, is_causal, enable_gqa):
        k, v = (heads.repeat_interleave(q.shape[1] // k.shape[1], 1) for heads in (k, v))
        with sdpa_kernel(backend):
            return ring(q, k, v, is_causal=is_causal)

    F.scaled_dot_product_attention = attention
    report(torch, step, shape.seq_len, quiet=rank != 0)
dist.destroy_process_group()
