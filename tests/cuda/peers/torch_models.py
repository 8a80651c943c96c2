"""GPT and LLaMA as PyTorch users write them for torch.compile: one product computes Q, K and V, and one computes gate
and up."""
import inspect

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from shape import document_lengths, need

flex, varlen = None, None


def import_attention(attention):
    """Imports the attention of documents; see need()."""
    global flex, varlen
    if attention == "flex":
        (flex,) = need("torch.nn.attention.flex_attention")
    if attention == "varlen":
        (varlen,) = need("torch.nn.attention.varlen")


class Exchange(torch.autograd.Function):
    """Rows to the GPUs of their experts, or back."""

    @staticmethod
    def forward(ctx, rows, receives, sends):
        ctx.splits = sends, receives
        out = rows.new_empty(sum(receives), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), receives, sends)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, *ctx.splits), None, None


class GptBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden = shape.hidden
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, shape.ffn), nn.Linear(shape.ffn, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(shape.vocab, shape.hidden), nn.Embedding(shape.seq_len, shape.hidden)
        self.blocks = nn.ModuleList([GptBlock(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return loss_of(self.head(self.norm(x)), targets)


# Each attention takes q, k, v, (B, heads, T, HS), and the result of its `*_context`. It returns (B, T, NH, HS).
def causal_attention(q, k, v, _):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def flex_attention(q, k, v, block_mask):
    return flex.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True).transpose(1, 2)


def flex_context(shape):
    starts = document_starts(shape)

    def mask(b, h, query, key):
        return (key <= query) & (key >= starts[b, query])

    return flex.create_block_mask(mask, shape.batch, None, shape.seq_len, shape.seq_len)


def varlen_attention(q, k, v, context):
    bounds, longest = context
    rows = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    taken = inspect.signature(varlen.varlen_attn).parameters  # they differ between releases
    options = {"window_size": (-1, 0)} if "window_size" in taken else {"is_causal": True}
    if "enable_gqa" in taken:
        options["enable_gqa"] = True
    return varlen.varlen_attn(*rows, bounds, bounds, longest, longest, **options).unflatten(0, (q.shape[0], q.shape[2]))


def varlen_context(shape):
    lengths = [n for sample in range(shape.batch) for n in document_lengths(sample, shape.seq_len)]
    return torch.tensor([0] + lengths, device="cuda").cumsum(0).int(), max(lengths)


ATTENTIONS = {"causal": causal_attention, "flex": flex_attention, "varlen": varlen_attention}
CONTEXTS = {"flex": flex_context, "varlen": varlen_context}


class LlamaBlock(nn.Module):
    def __init__(self, shape, cos, sin, attention):
        super().__init__()
        self.attend = ATTENTIONS[attention]
        hidden, head = shape.hidden, shape.hidden // shape.heads
        self.widths = [hidden, shape.kv_heads * head, shape.kv_heads * head]
        self.q_norm, self.k_norm = (nn.RMSNorm(head, eps=1e-6) if shape.qk_norm else None for _ in range(2))
        self.head, self.cos, self.sin = head, cos, sin
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv, self.proj = nn.Linear(hidden, sum(self.widths), bias=False), nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, hidden, bias=False)

    def rotate(self, x, norm):
        if norm is not None:
            x = norm(x).type_as(x)
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x, context):
        batch, length, hidden = x.shape
        q, k, v = (part.view(batch, length, -1, self.head).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(self.widths, -1))
        q, k = self.rotate(q, self.q_norm), self.rotate(k, self.k_norm)
        x = x + self.proj(self.attend(q, k, v, context).reshape(batch, length, hidden))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        cos, sin = rope_tables(shape)
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList([LlamaBlock(shape, cos, sin, attention) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens, targets, context=None):
        x = self.tokens(tokens).bfloat16()
        for block in self.blocks:
            x = block(x, context)
        return loss_of(self.head(self.norm(x)), targets)


def document_starts(shape):
    """Returns the position in its sequence at which the document of each token starts, (B, T)."""
    rows = []
    for sample in range(shape.batch):
        lengths = torch.tensor(document_lengths(sample, shape.seq_len))
        rows.append((lengths.cumsum(0) - lengths).repeat_interleave(lengths))
    return torch.stack(rows).cuda()


def rope_tables(shape):
    head = shape.hidden // shape.heads
    frequencies = 1.0 / (500000 ** (torch.arange(0, head, 2, device="cuda").float() / head))
    positions = torch.arange(shape.seq_len, device="cuda")
    if shape.documents:
        positions = (positions - document_starts(shape))[:, None]  # (B, 1, T)
    angles = positions[..., None].float() * frequencies
    angles = torch.cat([angles] * 2, -1)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def loss_of(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def model_of(shape, attention="causal"):
    return Gpt(shape) if shape.kind == "gpt" else Llama(shape, attention)


def samples(shape):
    return (torch.randint(0, shape.vocab, (shape.batch, shape.seq_len), device="cuda") for _ in range(2))
