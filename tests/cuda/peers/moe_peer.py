#!/usr/bin/env python3
"""Measures a mixture of experts of PyTorch: torch._grouped_mm, torch.compile, fp32 master weights, fused AdamW.

    moe_peer.py SHAPE                                             one GPU
    torchrun --standalone --nproc-per-node N moe_peer.py SHAPE    N GPUs divide the experts; all-to-all of rows

SHAPE: JSON of the fields of Moe. Weights and gradients are bf16; a step has `microbatches`, of one sequence each.
Routers choose by softmax. Gradients of the layers that all GPUs hold are summed over them; no gradient is clipped.
"""
import json
import os
import sys
from dataclasses import dataclass

from shape import need, report

torch, nn, F, dist = need("torch", "torch.nn", "torch.nn.functional", "torch.distributed")
from torch_models import Exchange


@dataclass(frozen=True)
class Moe:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    experts: int
    per_token: int
    vocab: int
    seq_len: int
    microbatches: int


shape = Moe(**json.loads(sys.argv[1]))
world = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(rank)
if world > 1:
    dist.init_process_group("nccl")
torch.manual_seed(rank)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        local = shape.experts // world
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(local, shape.hidden, 2 * shape.ffn) * 0.02)
        self.down = nn.Parameter(torch.randn(local, shape.ffn, shape.hidden) * 0.02)

    def compute(self, rows, ends):
        gate, up = torch._grouped_mm(rows, self.gate_up, offs=ends).chunk(2, -1)
        return torch._grouped_mm(F.silu(gate) * up, self.down, offs=ends)

    def forward(self, x):
        weights, chosen = self.router(x).float().softmax(-1).topk(shape.per_token, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).flatten()
        order = chosen.flatten().argsort(stable=True)
        # bincount's output has a size that torch.compile does not know: it would end the graph.
        counts = torch.zeros(shape.experts, dtype=torch.int64, device=x.device).scatter_add(
            0, chosen.flatten(), torch.ones_like(chosen.flatten()))
        rows = x.index_select(0, order // shape.per_token)
        if world == 1:
            out = self.compute(rows, counts.cumsum(0).int())
        else:
            arriving = torch.empty_like(counts)
            dist.all_to_all_single(arriving, counts)
            of_rank = torch.stack([counts.view(world, -1).sum(1), arriving.view(world, -1).sum(1)]).tolist()
            rows = Exchange.apply(rows, of_rank[1], of_rank[0])
            experts = torch.arange(shape.experts // world, device=x.device).repeat(world)
            merge = experts.repeat_interleave(arriving, output_size=rows.shape[0]).argsort(stable=True)
            out = self.compute(rows.index_select(0, merge), arriving.view(world, -1).sum(0).cumsum(0).int())
            back = torch.empty_like(out).index_copy(0, merge, out)
            out = Exchange.apply(back, of_rank[0], of_rank[1])
        out = out * weights[order].unsqueeze(-1).type_as(out)
        return torch.zeros_like(x).index_add(0, order // shape.per_token, out)


class Block(nn.Module):
    def __init__(self, cos, sin):
        super().__init__()
        self.widths = [shape.heads * shape.head, shape.kv_heads * shape.head, shape.kv_heads * shape.head]
        self.cos, self.sin = cos, sin
        self.norm1, self.norm2 = nn.RMSNorm(shape.hidden, eps=1e-6), nn.RMSNorm(shape.hidden, eps=1e-6)
        self.q_norm, self.k_norm = nn.RMSNorm(shape.head, eps=1e-6), nn.RMSNorm(shape.head, eps=1e-6)
        self.qkv = nn.Linear(shape.hidden, sum(self.widths), bias=False)
        self.proj = nn.Linear(self.widths[0], shape.hidden, bias=False)
        self.experts = Experts()

    def rotate(self, x, norm):
        x = norm(x)
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def attention(self, x):
        q, k, v = (part.view(1, shape.seq_len, -1, shape.head).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(self.widths, -1))
        q, k = self.rotate(q, self.q_norm), self.rotate(k, self.k_norm)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.proj(y.transpose(1, 2).reshape(shape.seq_len, -1))

    def forward(self, x):
        x = self.attention(x)
        return x + self.experts(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        frequencies = 1e6 ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        angles = torch.cat([torch.outer(torch.arange(shape.seq_len).float(), frequencies)] * 2, -1)
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(angles.cos().bfloat16(), angles.sin().bfloat16())
                                    for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return x


with torch.device("cuda"):
    model = Model().bfloat16()
parameters = list(model.parameters())
divided = {id(p) for block in model.blocks for p in (block.experts.gate_up, block.experts.down)}
masters = [p.detach().float() for p in parameters]
for master in masters:
    master.requires_grad_()
optimizer = torch.optim.AdamW(masters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


@torch.compile
def loss_of(x, targets):
    return F.cross_entropy(model.head(model.norm(x)).float(), targets)


if world == 1:
    for block in model.blocks:
        block.compile()
else:  # the host reads the numbers of rows, which ends a graph
    for block in model.blocks:
        block.attention = torch.compile(block.attention)
        block.experts.compute = torch.compile(block.experts.compute, dynamic=True)
samples = torch.randint(0, shape.vocab, (shape.microbatches, 2, shape.seq_len), device="cuda")


def step():
    for tokens, targets in samples:
        loss = loss_of(model(tokens), targets) / shape.microbatches
        loss.backward()
    for parameter, master in zip(parameters, masters):
        if world > 1 and id(parameter) not in divided:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        master.grad = parameter.grad.float()
        parameter.grad = None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch._foreach_copy_(parameters, masters)
    return loss.detach() * shape.microbatches


report(torch, step, shape.microbatches * shape.seq_len * world, warmup=3, steps=6, quiet=rank != 0)
if world > 1:
    dist.destroy_process_group()
