#!/usr/bin/env python3
"""Measures Transformer Engine's context parallelism under torchrun: all GPUs process parts of the same sample of a
LLaMA.

    torchrun --standalone --nproc-per-node N te_context_peer.py p2p|all_gather|a2a SHAPE

bf16 weights on every GPU, FusedAdam with fp32 master weights; gradients are averaged in bf16 after the backward pass.
Each GPU holds two pieces of the sample, one from each end. SHAPE is that of context_peer.py.
"""
import os

from shape import arguments, need, report

mode, shape = arguments()
torch, dist, te, optimizers = need("torch", "torch.distributed", "transformer_engine.pytorch",
                                   "transformer_engine.pytorch.optimizers")
import torch.nn as nn
import torch.nn.functional as F

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
world = dist.get_world_size()
torch.manual_seed(0)
bf16 = torch.bfloat16


@torch.compile
def loss_of(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).view(-1, shape.vocab).float(), targets.view(-1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden, dtype=bf16)
        self.blocks = nn.ModuleList(te.TransformerLayer(
            shape.hidden, shape.ffn, shape.heads, num_gqa_groups=shape.kv_heads, hidden_dropout=0.0,
            attention_dropout=0.0, self_attn_mask_type="causal", fuse_qkv_params=True, params_dtype=bf16,
            attn_input_format="bshd", layer_number=n + 1, activation="swiglu", normalization="RMSNorm",
            bias=False) for n in range(shape.layers))
        self.norm = te.RMSNorm(shape.hidden, params_dtype=bf16)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False, dtype=bf16)


with torch.device("cuda"):
    model = Model()
stream = torch.cuda.Stream()
for block in model.blocks:
    block.set_context_parallel_group(dist.group.WORLD, list(range(world)), stream, mode)
table = te.RotaryPositionEmbedding(shape.hidden // shape.heads, rotary_base=500000.0)(max_seq_len=shape.seq_len).cuda()
parameters = list(model.parameters())
optimizer = optimizers.FusedAdam(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, master_weights=True)
tokens, targets = torch.randint(0, shape.vocab, (2, 1, shape.seq_len), device="cuda")
for tensor in (tokens, targets):
    dist.broadcast(tensor, 0)
piece = shape.seq_len // (2 * world)
mine = [slice(i * piece, (i + 1) * piece) for i in (rank, 2 * world - 1 - rank)]
tokens, targets = (torch.cat([t[:, s] for s in mine], 1).contiguous() for t in (tokens, targets))


def step():
    x = model.tokens(tokens)
    for block in model.blocks:
        x = block(x, rotary_pos_emb=table)
    loss = loss_of(model.norm(x), model.head.weight, targets)
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


report(torch, step, shape.seq_len, quiet=rank != 0)
dist.destroy_process_group()
