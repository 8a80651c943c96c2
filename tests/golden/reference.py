#!/usr/bin/env python3
"""Repeats an exported run in plain PyTorch and writes its loss curve.

    reference.py RUN_DIR OUT.txt [--precision fp32|bf16] [--device cpu|cuda] [--steps N] [--parts N=OUT.txt ...]

RUN_DIR contains the files that export_run wrote. OUT.txt receives a line "step loss grad_norm" per step. The script
imports nothing of Trireme and uses autograd for the backward pass: the two share formulas, initial weights and data,
but no code.

On the CPU, values are stored in bf16 and arithmetic is fp32, as inside a GPU's GEMMs. PyTorch's own bf16 on the CPU
sums some shapes in bf16, depending on the processor.

--parts also writes the curve of a run that adds the same numbers in another order: the sums of linear layers in N parts,
and the microbatches from the last to the first. The difference from OUT.txt is the effect of rounding alone on this
machine.
"""
import argparse
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F


def load_weights(folder, tensors):
    flat = np.memmap(os.path.join(folder, "weights.bin"), dtype="<f4", mode="r")
    weights = {}
    for t in tensors:
        count = math.prod(t["shape"])
        weights[t["name"]] = torch.from_numpy(flat[t["offset"] : t["offset"] + count].copy()).reshape(t["shape"])
    if sum(w.numel() for w in weights.values()) != flat.size:
        sys.exit("weights.bin does not match run.json")
    return weights


def attend(q, k, v, band):
    """Computes the attention of q over k, v (B, heads, T, HS). `band` (T, T) masks it; without a band it is causal.
    PyTorch before 2.0 lacks scaled_dot_product_attention."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=band, is_causal=band is None)
    if band is None:
        band = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (q.float() @ k.float().transpose(-2, -1)) / math.sqrt(q.shape[-1])
    return (scores.masked_fill(~band, -math.inf).softmax(-1) @ v.float()).to(q.dtype)


class Stored(torch.autograd.Function):
    """Rounds a value to bf16, and its gradient in the backward pass. Both remain fp32 tensors."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().float()

    @staticmethod
    def backward(ctx, dx):
        return dx.bfloat16().float()


def rope_frequencies(s, head_size):
    """Returns the angle per position of each pair of a head, and the factor of cosines and sines."""
    if "rope_fraction" in s:  # the other pairs do not rotate
        part = {name: value for name, value in s.items() if name != "rope_fraction"}
        f, factor = rope_frequencies(part, int(s["rope_fraction"] * head_size))
        rest = head_size // 2 - len(f)
        return F.pad(f, (0, rest)), F.pad(torch.full_like(f, factor), (0, rest), value=1.0)
    i = torch.arange(head_size // 2, dtype=torch.float64)
    f = s["rope_theta"] ** (-2.0 * i / head_size)
    scaling = s.get("rope_scaling")
    if scaling is None:
        return f, 1.0
    divided, length = f / scaling["factor"], scaling["original_seq_len"]
    if scaling["type"] == "linear":
        return divided, 1.0
    if scaling["type"] == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = ((length * f / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return keep * f + (1 - keep) * divided, 1.0

    def pair(rotations):
        return head_size * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(s["rope_theta"]))

    first = max(math.floor(pair(scaling["beta_fast"])), 0)
    last = min(math.ceil(pair(scaling["beta_slow"])), head_size - 1)
    keep = 1 - ((i - first) / (last - first if last != first else 0.001)).clamp(0, 1)
    return keep * f + (1 - keep) * divided, scaling["attention_factor"] or 0.1 * math.log(scaling["factor"]) + 1


class Model:
    """The model as functions of a dict of weights. `s` holds the settings of run.json. `stored` is applied to every
    activation."""

    def __init__(self, s, device, stored, parts):
        self.s, self.stored, self.parts = s, stored, parts
        t = torch.arange(s["seq_len"], device=device)
        self.head_size = s.get("head_dim", s["hidden"] // s["heads"])
        if s["position"] == "rope":
            frequencies, factor = rope_frequencies(s, self.head_size)
            factor = factor.to(device) if torch.is_tensor(factor) else factor
            angle = t[:, None].double() * frequencies.to(device)
            self.cos, self.sin = (factor * angle.cos()).float(), (factor * angle.sin()).float()
        self.band = None
        if s["window"] > 0:  # token t attends to (t - window, t]
            self.band = (t[None, :] <= t[:, None]) & (t[None, :] > t[:, None] - s["window"])

    def norm(self, w, name, x):
        weight, width = w[name + "/weight"], (x.shape[-1],)
        if self.s["norm"] == "layernorm":
            return self.stored(F.layer_norm(x, width, weight, w.get(name + "/bias"), self.s["norm_eps"]))
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.s["norm_eps"])
        return self.stored((y * weight.float()).to(x.dtype))

    def linear(self, w, name, x, bias=True):
        """Applies a linear layer. The rows of its weight are outputs; several leading dims are flattened into one."""
        weight, b = w[name + "/weight"], w.get(name + "/bias") if bias else None
        return self.stored(self.product(x, weight.reshape(-1, x.shape[-1]), None if b is None else b.reshape(-1)))

    def product(self, x, weight, b=None):
        if self.parts == 1:
            return F.linear(x, weight, b)
        y = sum(F.linear(u, v) for u, v in zip(x.tensor_split(self.parts, -1), weight.tensor_split(self.parts, -1)))
        return y if b is None else y + b

    def rotate(self, w, name, x):
        """Rotates x (B, heads, T, HS), in which element i of the first half pairs with i + HS/2. With QK-norm, each
        head is normalized first, or all heads together."""
        x, dtype = x.float(), x.dtype
        if self.s.get("qk_norm") == "full":
            weight = w[name + "/weight"].float().view(-1, 1, x.shape[-1])
            x = x * torch.rsqrt(x.pow(2).mean((1, 3), keepdim=True) + self.s["norm_eps"]) * weight
        elif "qk_norm" in self.s:
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.s["norm_eps"]) * w[name + "/weight"].float()
        a, b = x.chunk(2, dim=-1)
        return self.stored(torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1).to(dtype))

    def attention(self, w, base, x):
        s, (batch, length, _) = self.s, x.shape
        kv, size = s["kv_heads"], self.head_size
        group = s["heads"] // kv
        # The layout is one block per key/value head: its `group` queries, its key and its value.
        qkv = self.linear(w, base + "qkv", x).view(batch, length, kv, group + 2, size)
        q = qkv[:, :, :, :group].reshape(batch, length, kv * group, size).transpose(1, 2)
        k = qkv[:, :, :, group].transpose(1, 2)
        v = qkv[:, :, :, group + 1].transpose(1, 2)
        if s["position"] == "rope":
            q, k = self.rotate(w, base + "query_norm", q), self.rotate(w, base + "key_norm", k)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = self.stored(attend(q, k, v, self.band))
        return self.linear(w, base + "proj", y.transpose(1, 2).reshape(batch, length, -1))

    def mlp(self, w, base, x):
        h = self.linear(w, base + "fc1", x)
        if self.s["activation"] != "swiglu":
            h = F.gelu(h, approximate="tanh" if self.s["activation"] == "gelu" else "none")
        else:
            gate, up = h.float().chunk(2, dim=-1)
            h = (F.silu(gate) * up).to(x.dtype)
        return self.linear(w, base + "fc2", self.stored(h))

    def logits(self, w, tokens):
        x = F.embedding(tokens, w["embedding/tokens/weight"])
        if self.s["position"] == "learned":
            x = x + w["embedding/positions/weight"]
        x = self.stored(x)
        for layer in range(self.s["layers"]):
            base = f"layers/{layer}/"
            position = self.s.get("norm_position", "pre")
            before = (lambda name, x: x) if position == "post" else lambda name, x: self.norm(w, base + name, x)
            after = (lambda name, x: x) if position == "pre" else lambda name, x: self.norm(w, base + name, x)
            h = before("norm1", x)
            if self.s["block"] == "parallel":  # with one norm, it has one output bias, that of fc2
                g = before("norm2", x) if "parallel_norms" in self.s else h
                x = self.stored(x + self.attention(w, base + "attention/", h) + self.mlp(w, base + "mlp/", g))
            else:
                x = self.stored(x + after("post_norm1", self.attention(w, base + "attention/", h)))
                x = self.stored(x + after("post_norm2", self.mlp(w, base + "mlp/", before("norm2", x))))
        x = self.norm(w, "final_norm", x)
        head = w["embedding/tokens/weight" if self.s["tie_embeddings"] else "head/weight"]
        return self.stored(self.product(x, head[: self.s["vocab"]]))  # rows after the vocabulary are padding

    def loss_sum(self, w, inputs, targets):
        logits = self.logits(w, inputs).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


class AdamW:
    """AdamW of Loshchilov & Hutter 2019 on fp32 master weights. Matrices decay; norms and biases do not."""

    def __init__(self, s, master, decays):
        self.s, self.master, self.decays = s, master, decays
        self.m = {n: torch.zeros_like(w) for n, w in master.items()}
        self.v = {n: torch.zeros_like(w) for n, w in master.items()}

    @torch.no_grad()
    def step(self, step, lr, grads):
        """Updates the weights and returns the gradient norm before clipping. `step` counts from 1."""
        s = self.s
        norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in grads.values()))
        scale = min(1.0, s["clip"] / norm) if s["clip"] > 0 and norm > 0 else 1.0
        correct1, correct2 = 1 - s["beta1"] ** step, 1 - s["beta2"] ** step
        for name, w in self.master.items():
            g, m, v = grads[name] * scale, self.m[name], self.v[name]
            m.mul_(s["beta1"]).add_(g, alpha=1 - s["beta1"])
            v.mul_(s["beta2"]).addcmul_(g, g, value=1 - s["beta2"])
            direction = (m / correct1) / ((v / correct2).sqrt() + s["eps"])
            if self.decays[name]:
                direction += s["weight_decay"] * w
            w.sub_(direction, alpha=lr)
        return norm


def zeropower(u):
    """The five Newton-Schulz iterations of torch.optim.Muon, in fp32."""
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.T if u.shape[0] > u.shape[1] else x


class Muon:
    """Muon for the logical matrices of the layers' linears, AdamW for everything else. Uses torch.optim.Muon where
    PyTorch has it (2.9), in fp32 instead of its bf16; otherwise its formula."""

    def __init__(self, s, master, decays):
        self.s = s
        self.matrices = {}  # by weight: its logical matrices
        for name, w in master.items():
            if name.startswith("layers/") and decays[name]:
                self.matrices[name] = [part.clone() for part in self.split(name, w)]
        rest = {n: w for n, w in master.items() if n not in self.matrices}
        self.master, self.adamw = master, AdamW(s, rest, decays)
        self.parts = [part for parts in self.matrices.values() for part in parts]
        self.momentum = [torch.zeros_like(part) for part in self.parts]
        self.torch = None
        if hasattr(torch.optim, "Muon"):
            self.torch = torch.optim.Muon(self.parts, lr=1.0, weight_decay=s["weight_decay"], momentum=s["momentum"],
                                          adjust_lr_fn="match_rms_adamw")
            print("torch.optim.Muon", flush=True)

    def split(self, name, w):
        """Returns the logical matrices of a weight, or of its gradient, as views or copies."""
        if name.endswith("qkv/weight"):
            s = self.s
            kv, size = s["kv_heads"], s.get("head_dim", s["hidden"] // s["heads"])
            heads = w.view(kv, -1, size, w.shape[-1])  # of each key/value head: its queries, its key, its value
            return [part.reshape(-1, w.shape[-1]) for part in (heads[:, :-2], heads[:, -2], heads[:, -1])]
        return list(w) if w.dim() == 3 else [w]

    def join(self, name, parts, w):
        if name.endswith("qkv/weight"):
            kv, width = self.s["kv_heads"], w.shape[-1]
            w.copy_(torch.cat([part.view(kv, -1, width) for part in parts], dim=1).reshape(w.shape))
        else:
            w.copy_(torch.stack(parts) if w.dim() == 3 else parts[0])

    @torch.no_grad()
    def step(self, step, lr, grads):
        s = self.s
        norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in grads.values()))
        scale = min(1.0, s["clip"] / norm) if s["clip"] > 0 and norm > 0 else 1.0
        rest = {n: grads[n] * scale for n in self.adamw.master}
        self.adamw.s = {**s, "clip": 0}  # clipped already
        self.adamw.step(step, lr * s["adamw_lr_factor"], rest)
        of_parts = [g * scale for name in self.matrices for g in self.split(name, grads[name])]
        if self.torch is not None:
            self.torch.param_groups[0]["lr"] = lr
            for part, g in zip(self.parts, of_parts):
                part.grad = g.contiguous()
            bf16, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, torch.Tensor.clone  # iterates in fp32
            self.torch.step()
            torch.Tensor.bfloat16 = bf16
        else:
            for part, m, g in zip(self.parts, self.momentum, of_parts):
                m.mul_(s["momentum"]).add_(g)
                x = zeropower(g + s["momentum"] * m)
                part.mul_(1 - lr * s["weight_decay"]).sub_(x, alpha=lr * 0.2 * math.sqrt(max(x.shape)))
        for name, parts in self.matrices.items():
            self.join(name, parts, self.master[name])
        return norm


OPTIMIZERS = {"adamw": AdamW, "muon": Muon}


def train(run, folder, steps, precision, device, parts, out):
    s = run["settings"]
    emulated = precision == "bf16" and device == "cpu"
    model = Model(s, device, Stored.apply if emulated else lambda x: x, parts)
    master = {n: w.to(device) for n, w in load_weights(folder, run["tensors"]).items()}
    optimizer = OPTIMIZERS[s["optimizer"]](s, master, {t["name"]: t["decay"] for t in run["tensors"]})
    grads = {n: torch.zeros_like(w) for n, w in master.items()}
    storage = torch.bfloat16 if precision == "bf16" else torch.float32
    dtype = torch.float32 if emulated else storage
    tokens = np.memmap(os.path.join(folder, "tokens.bin"), dtype="<i4", mode="r")
    tokens = tokens.reshape(s["steps"], 2, s["global_batch"], s["seq_len"])
    count = s["global_batch"] * s["seq_len"]

    start = time.time()
    for step in range(steps):
        weights = {n: w.to(storage, copy=True).to(dtype).requires_grad_() for n, w in master.items()}
        for g in grads.values():
            g.zero_()
        inputs, targets = torch.from_numpy(tokens[step].astype(np.int64)).to(device)
        total = 0.0
        for first in range(0, s["global_batch"], s["micro_batch"])[:: 1 if parts == 1 else -1]:
            micro = slice(first, first + s["micro_batch"])
            loss = model.loss_sum(weights, inputs[micro], targets[micro])
            (loss / count).backward()
            total += loss.item()
            with torch.no_grad():  # sums microbatches in fp32 for every type of weights
                for name, w in weights.items():
                    grads[name] += w.grad.float()
                    w.grad = None
        norm = optimizer.step(step + 1, s["lr"][step], grads)
        line = f"{step + 1} {total / count:.9g} {norm:.9g}"
        print(line, f"  {time.time() - start:.1f} s", flush=True)
        out.write(line + "\n")
        out.flush()
        if not math.isfinite(total + norm):
            sys.exit("not finite")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir")
    parser.add_argument("out")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="default: the run's")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, help="train only the first N steps")
    parser.add_argument("--parts", nargs="+", default=[], metavar="N=OUT",
                        help="also write the curve of sums in N parts to OUT")
    args = parser.parse_args()

    with open(os.path.join(args.run_dir, "run.json")) as file:
        run = json.load(file)
    if run["settings"]["optimizer"] not in OPTIMIZERS:
        sys.exit(f"reference.py supports only optimizer.name: {' and '.join(OPTIMIZERS)}")
    torch.backends.cuda.matmul.allow_tf32 = False
    steps = min(args.steps or run["settings"]["steps"], run["settings"]["steps"])
    precision = args.precision or run["precision"]
    for parts, path in [(1, args.out), *((int(parts), path) for parts, path in (p.split("=", 1) for p in args.parts))]:
        with open(path, "w") as out:
            out.write(f"# run {run['fingerprint']} PyTorch {torch.__version__} {precision} {args.device}\n")
            out.write("# step loss grad_norm\n")
            train(run, args.run_dir, steps, precision, args.device, parts, out)


if __name__ == "__main__":
    main()
