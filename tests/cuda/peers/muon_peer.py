#!/usr/bin/env python3
"""Measures a step of torch.optim.Muon on one GPU, on the matrices of a model's layers: fp32 weights and gradients, five
iterations in bf16. Queries, keys, values, gate and up are matrices of their own, as in Trireme.

    muon_peer.py eager|compile SHAPE

The other parameters, which AdamW updates, are not included.
"""
from shape import arguments, need, report

mode, shape = arguments()
(torch,) = need("torch")

head = shape.hidden // shape.heads
kv_width = shape.kv_heads * head
up = [(shape.ffn, shape.hidden)] * (2 if shape.kind == "llama" else 1)
matrices = [(shape.hidden, shape.hidden), (kv_width, shape.hidden), (kv_width, shape.hidden),
            (shape.hidden, shape.hidden), *up, (shape.hidden, shape.ffn)] * shape.layers
torch.manual_seed(0)
weights = [torch.nn.Parameter(torch.randn(size, device="cuda") * 0.02) for size in matrices]
for weight in weights:
    weight.grad = torch.randn_like(weight)
optimizer = torch.optim.Muon(weights, lr=1e-4, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
update = torch.compile(optimizer.step) if mode == "compile" else optimizer.step


def step():
    update()
    return 0


report(torch, step, shape.batch * shape.seq_len)
