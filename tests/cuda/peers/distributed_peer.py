#!/usr/bin/env python3
"""Measures PyTorch on several GPUs under torchrun: FSDP2 (ZeRO-3), or a GPT with tensor and sequence parallelism
through DTensor.

    torchrun --standalone --nproc-per-node N distributed_peer.py fsdp2|tp|tp_async SHAPE

fsdp2 uses bf16 parameters, fp32 reductions and fp32 master weights; each GPU has its own batch. tp uses bf16
throughout, without master weights; all GPUs share one batch, and the head is not tied to the embedding. tp_async
overlaps the transfers with the matrix products that they belong to. No mode clips gradients.
"""
import os

from shape import arguments, need, report

mode, shape = arguments()
torch, dist, device_mesh = need("torch", "torch.distributed", "torch.distributed.device_mesh")
import torch.nn as nn
import torch.nn.functional as F
import torch_models
from torch.nn.attention import SDPBackend, sdpa_kernel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
world = dist.get_world_size()
mesh = device_mesh.init_device_mesh("cuda", (world,))
torch.manual_seed(0)


def fsdp2():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch_models.loss_of = torch.compile(torch_models.loss_of)
    with torch.device("cuda"):
        model = torch_models.model_of(shape)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)

    def loss(tokens, targets):
        value = model(tokens, targets)
        value.backward()
        return value

    return model, loss, world * shape.batch


class TpBlock(nn.Module):
    def __init__(self):
        super().__init__()
        hidden = shape.hidden
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.proj = nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, shape.ffn), nn.Linear(shape.ffn, hidden)

    def forward(self, x):
        normed = self.norm1(x)
        q, k, v = (linear(normed) for linear in (self.q, self.k, self.v))
        batch, head = q.shape[0], shape.hidden // shape.heads
        q, k, v = (part.view(batch, shape.seq_len, -1, head).transpose(1, 2) for part in (q, k, v))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, shape.seq_len, -1))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class TpGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList([TpBlock() for _ in range(shape.layers)])
        self.norm, self.head = nn.LayerNorm(shape.hidden), nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tensor_parallel(asynchronous):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                                   parallelize_module)

    with torch.device("meta"):
        model = TpGpt().to(torch.bfloat16)
    columns, rows = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for block in model.blocks:
        parallelize_module(block, mesh, {"norm1": SequenceParallel(), "q": columns, "k": columns, "v": columns,
                                         "proj": rows, "norm2": SequenceParallel(), "fc1": columns, "fc2": rows})
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(parameter)
    if asynchronous:
        import torch._inductor.config as inductor
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(mesh.get_group().group_name)
        inductor._micro_pipeline_tp = True
    for block in model.blocks:
        block.compile(fullgraph=False)

    def loss(tokens, targets):
        with loss_parallel():
            value = F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
            value.backward()
        return value

    return model, loss, shape.batch


if mode != "fsdp2" and shape.kind != "gpt":
    raise SystemExit(f"{mode} supports only GPT models")
model, loss_and_gradients, sequences = fsdp2() if mode == "fsdp2" else tensor_parallel(mode == "tp_async")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
tokens, targets = torch_models.samples(shape)
if mode != "fsdp2":
    for tensor in (tokens, targets):
        dist.broadcast(tensor, 0)


def step():
    loss = loss_and_gradients(tokens, targets)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


report(torch, step, sequences * shape.seq_len, quiet=rank != 0)
dist.destroy_process_group()
