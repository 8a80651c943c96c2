#!/usr/bin/env python3
"""Measures Transformer Engine on one GPU: its layers with bf16 weights and its FusedAdam with fp32 master weights.
PyTorch computes the embedding, the head and the loss.

    te_peer.py bf16|delayed|current|block SHAPE     all modes except bf16 are FP8 recipes
"""
import contextlib

from shape import arguments, need, report

mode, shape = arguments()
torch, te, recipes, optimizers = need("torch", "transformer_engine.pytorch", "transformer_engine.common.recipe",
                                      "transformer_engine.pytorch.optimizers")
import torch.nn as nn
import torch.nn.functional as F
from torch_models import samples

torch.set_float32_matmul_precision("high")
torch.manual_seed(0)
is_llama = shape.kind == "llama"
recipe = {
    "bf16": lambda: None,
    "delayed": lambda: recipes.DelayedScaling(fp8_format=recipes.Format.HYBRID, amax_history_len=16,
                                              amax_compute_algo="max"),
    "current": lambda: recipes.Float8CurrentScaling(),
    "block": lambda: recipes.Float8BlockScaling(),
}[mode]()


@torch.compile
def loss_of(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).view(-1, shape.vocab).float(), targets.view(-1))


def layer(number):
    kind = dict(num_gqa_groups=shape.kv_heads, activation="swiglu", normalization="RMSNorm", bias=False) if is_llama \
        else dict(activation="gelu")
    if shape.qk_norm:
        kind |= dict(qk_norm_type="RMSNorm", qk_norm_before_rope=True)
    return te.TransformerLayer(shape.hidden, shape.ffn, shape.heads, hidden_dropout=0.0, attention_dropout=0.0,
                               self_attn_mask_type="causal", fuse_qkv_params=True, params_dtype=torch.bfloat16,
                               attn_input_format="bshd", layer_number=number, **kind)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        if not is_llama:
            self.positions = nn.Embedding(shape.seq_len, shape.hidden)
        self.blocks = nn.ModuleList([layer(i + 1) for i in range(shape.layers)])
        self.norm = (te.RMSNorm if is_llama else te.LayerNorm)(shape.hidden, params_dtype=torch.bfloat16)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if not is_llama:
            self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if not is_llama:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, is_first_microbatch=True, **rope)
        return loss_of(self.norm(x), self.head.weight, targets)


rope = {}
if is_llama:
    table = te.attention.RotaryPositionEmbedding(shape.hidden // shape.heads)(max_seq_len=shape.seq_len).cuda()
    rope = {"rotary_pos_emb": table}
with torch.device("cuda"):
    model = Model().to(torch.bfloat16)
optimizer = optimizers.FusedAdam(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, master_weights=True)
tokens, targets = samples(shape)


def step():
    with te.fp8_autocast(enabled=True, fp8_recipe=recipe) if recipe else contextlib.nullcontext():
        loss = model(tokens, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


report(torch, step, shape.batch * shape.seq_len)
