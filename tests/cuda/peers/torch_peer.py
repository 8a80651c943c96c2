#!/usr/bin/env python3
"""Measures PyTorch on one GPU with torch.compile, cuDNN attention, autocast to bf16, fp32 master weights and fused
AdamW.

    torch_peer.py bf16|fp8_tensor|fp8_row|flex|varlen SHAPE

fp8_*: linear layers of torchao for all weights except the head. flex, varlen: attention within documents by
FlexAttention, or by FlashAttention's form for sequences of different lengths. They get masks and bounds that are made
once, while Trireme gets new ones in each step.
"""
from shape import arguments, need, report

mode, shape = arguments()
torch, attention = need("torch", "torch.nn.attention")
from torch_models import CONTEXTS, import_attention, model_of, samples  # only after need() has found torch

torch.set_float32_matmul_precision("high")
torch.manual_seed(0)
if shape.documents != (mode in CONTEXTS):
    raise SystemExit(f"{mode} of a shape with documents {shape.documents}")
import_attention(mode)
with torch.device("cuda"):
    model = model_of(shape, mode if mode in CONTEXTS else "causal")
    context = CONTEXTS[mode](shape) if mode in CONTEXTS else None
if mode.startswith("fp8"):
    (float8,) = need("torchao.float8")
    recipe = {"fp8_tensor": "tensorwise", "fp8_row": "rowwise"}[mode]
    float8.convert_to_float8_training(model, config=float8.Float8LinearConfig.from_recipe_name(recipe),
                                      module_filter_fn=lambda module, name: "head" not in name)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
compiled = torch.compile(model)
tokens, targets = samples(shape)


def step():
    with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION), torch.autocast("cuda", torch.bfloat16):
        loss = compiled(tokens, targets, context) if context is not None else compiled(tokens, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


report(torch, step, shape.batch * shape.seq_len)
