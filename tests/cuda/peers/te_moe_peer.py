#!/usr/bin/env python3
"""Measures a mixture of experts of Transformer Engine: GroupedLinear, moe_permute, Linear and FusedAdam (fp32 master
weights).

    te_moe_peer.py bf16|delayed|current SHAPE                                             one GPU
    torchrun --standalone --nproc-per-node N te_moe_peer.py bf16|delayed|current SHAPE    N GPUs divide the experts

SHAPE, routing, microbatches and sums of gradients are those of moe_peer.py. PyTorch computes attention, the router and
the loss in compiled graphs. GroupedLinear takes the numbers of rows from the host, which therefore waits once a layer.
In FP8 each expert's rows are padded to 16.
"""
import contextlib
import json
import os
import sys

from shape import need, report

mode = sys.argv[1]
torch, te, recipes, optimizers = need("torch", "transformer_engine.pytorch", "transformer_engine.common.recipe",
                                      "transformer_engine.pytorch.optimizers")
import types

import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch_models import Exchange

shape = types.SimpleNamespace(**json.loads(sys.argv[2]))
world = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(rank)
if world > 1:
    dist.init_process_group("nccl")
torch.manual_seed(rank)
recipe = {"bf16": lambda: None,
          "delayed": lambda: recipes.DelayedScaling(fp8_format=recipes.Format.HYBRID, amax_history_len=16,
                                                    amax_compute_algo="max"),
          "current": lambda: recipes.Float8CurrentScaling()}[mode]()
bf16 = torch.bfloat16
first = True  # the first microbatch of a step: FP8 weights are made once a step


@torch.compile
def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


@torch.compile
def route(x, weight):
    weights, chosen = F.linear(x, weight).float().softmax(-1).topk(shape.per_token, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    counts = torch.zeros(shape.experts, dtype=torch.int64, device=x.device).scatter_add(
        0, chosen.flatten(), torch.ones_like(chosen.flatten()))
    return weights, chosen.int(), counts


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = shape.experts // world
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False, dtype=bf16)
        self.gate_up = te.GroupedLinear(self.local, shape.hidden, 2 * shape.ffn, bias=False, params_dtype=bf16)
        self.down = te.GroupedLinear(self.local, shape.ffn, shape.hidden, bias=False, params_dtype=bf16)
        self.pad, self.unpad = te.Fp8Padding(self.local, 16), te.Fp8Unpadding(self.local, 16)

    def compute(self, rows, splits):
        padded = splits
        if recipe:
            rows, padded = self.pad(rows, splits)
        y = self.down(swiglu(self.gate_up(rows, padded, is_first_microbatch=first)), padded, is_first_microbatch=first)
        return self.unpad(y, splits) if recipe else y

    def forward(self, x):
        weights, chosen, counts = route(x, self.router.weight)
        rows, row_map = te.moe_permute(x, chosen, 0, map_type="index")
        if world == 1:
            out = self.compute(rows, counts.tolist())
        else:
            arriving = torch.empty_like(counts)
            dist.all_to_all_single(arriving, counts)
            sends, receives = torch.stack([counts, arriving]).view(2, world, -1).tolist()
            here = [sum(of_rank[e] for of_rank in receives) for e in range(self.local)]
            sends, receives = [sum(r) for r in sends], [sum(r) for r in receives]
            rows = Exchange.apply(rows, receives, sends)
            experts = torch.arange(self.local, device=x.device).repeat(world)
            merge = experts.repeat_interleave(arriving, output_size=rows.shape[0]).argsort(stable=True)
            out = self.compute(rows.index_select(0, merge), here)
            out = torch.empty_like(out).index_copy(0, merge, out)
            out = Exchange.apply(out, sends, receives)
        return te.moe_unpermute(out, row_map, merging_probs=weights, map_type="index")


class Block(nn.Module):
    def __init__(self, cos, sin):
        super().__init__()
        self.widths = [shape.heads * shape.head, shape.kv_heads * shape.head, shape.kv_heads * shape.head]
        self.cos, self.sin = cos, sin
        self.norm2 = te.RMSNorm(shape.hidden, eps=1e-6, params_dtype=bf16)
        self.q_norm, self.k_norm = (nn.RMSNorm(shape.head, eps=1e-6, dtype=bf16) for _ in range(2))
        self.qkv = te.LayerNormLinear(shape.hidden, sum(self.widths), eps=1e-6, bias=False, normalization="RMSNorm",
                                      params_dtype=bf16)
        self.proj = te.Linear(self.widths[0], shape.hidden, bias=False, params_dtype=bf16)
        self.experts = Experts()

    def rotate(self, x, norm):
        x = norm(x)
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def attention(self, qkv):
        q, k, v = (part.view(1, shape.seq_len, -1, shape.head).transpose(1, 2) for part in qkv.split(self.widths, -1))
        q, k = self.rotate(q, self.q_norm), self.rotate(k, self.k_norm)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(shape.seq_len, -1)

    def forward(self, x):
        x = x + self.proj(self.attention(self.qkv(x, is_first_microbatch=first)), is_first_microbatch=first)
        return x + self.experts(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        frequencies = 1e6 ** (-torch.arange(0, shape.head, 2, device="cuda").float() / shape.head)
        angles = torch.cat([torch.outer(torch.arange(shape.seq_len, device="cuda").float(), frequencies)] * 2, -1)
        self.tokens = nn.Embedding(shape.vocab, shape.hidden, dtype=bf16)
        self.blocks = nn.ModuleList(Block(angles.cos().bfloat16(), angles.sin().bfloat16())
                                    for _ in range(shape.layers))
        self.norm = te.RMSNorm(shape.hidden, eps=1e-6, params_dtype=bf16)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False, dtype=bf16)


with torch.device("cuda"):
    model = Model()
for block in model.blocks:
    block.attention = torch.compile(block.attention)
parameters = list(model.parameters())
divided = {id(p) for block in model.blocks for part in (block.experts.gate_up, block.experts.down)
           for p in part.parameters()}
optimizer = optimizers.FusedAdam(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, master_weights=True)


@torch.compile
def loss_of(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).float(), targets)


samples = torch.randint(0, shape.vocab, (shape.microbatches, 2, shape.seq_len), device="cuda")


def step():
    global first
    for n, (tokens, targets) in enumerate(samples):
        first = n == 0
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe) if recipe else contextlib.nullcontext():
            x = model.tokens(tokens)
            for block in model.blocks:
                x = block(x)
            loss = loss_of(model.norm(x), model.head.weight, targets) / shape.microbatches
        loss.backward()
    if world > 1:
        for parameter in parameters:
            if id(parameter) not in divided:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach() * shape.microbatches


report(torch, step, shape.microbatches * shape.seq_len * world, warmup=3, steps=6, quiet=rank != 0)
if world > 1:
    dist.destroy_process_group()
