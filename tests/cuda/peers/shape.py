"""The model shape that compare.py passes to a peer as JSON, and the functions that peers share. A peer prints one JSON
line."""
import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Shape:
    kind: str  # "gpt" or "llama"
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    batch: int  # sequences per GPU and step
    qk_norm: bool = False  # RMSNorm of each head of q and k before the rotation, as in Qwen3
    documents: bool = False  # each sequence consists of documents, whose tokens attend only to each other

    def to_json(self):
        return json.dumps(asdict(self))


def random_u64(key, counter):
    """Returns 64 random bits for (key, counter), as io/base/random.h does: Philox4x32-10."""
    keys, words = [key & 0xFFFFFFFF, key >> 32], [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [b >> 32 ^ words[1] ^ keys[0], b & 0xFFFFFFFF, a >> 32 ^ words[3] ^ keys[1], a & 0xFFFFFFFF]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return words[0] << 32 | words[1]


def document_lengths(sample, seq_len):
    """Returns the lengths of a sample's documents: those of `trireme bench step` (lib/bench/step.cpp)."""
    name = 0xCBF29CE484222325
    for letter in b"documents":
        name = (name ^ letter) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    key, least, most = random_u64(sample, name), seq_len // 16, seq_len // 2
    lengths = []
    while (begin := sum(lengths)) < seq_len:
        lengths.append(min(least + random_u64(key, begin) % (most - least + 1), seq_len - begin))
    return lengths


def arguments():
    """Returns (mode, shape) of the command line `PEER MODE SHAPE`."""
    return sys.argv[1], Shape(**json.loads(sys.argv[2]))


def need(*modules):
    """Imports the modules. If one is missing, prints a JSON line that says so and exits with status 0."""
    found = []
    for name in modules:
        try:
            found.append(importlib.import_module(name))
        except ImportError as missing:
            print(json.dumps({"skipped": str(missing)}), flush=True)
            sys.exit(0)
    return found


def report(torch, step, tokens, warmup=4, steps=12, quiet=False):
    """Times `step` with CUDA events after a warm-up and prints the milliseconds of each step. `tokens` is the number of
    tokens per step over all GPUs. If the environment sets PEER_STEPS, both the warm-up and the measurement have that
    many steps."""
    if "PEER_STEPS" in os.environ:
        warmup = steps = int(os.environ["PEER_STEPS"])
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    milliseconds = []
    for _ in range(steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        loss = step()
        end.record()
        torch.cuda.synchronize()
        milliseconds.append(begin.elapsed_time(end))
    if not quiet:
        print(json.dumps({"ms": milliseconds, "tokens": tokens, "loss": float(loss),
                          "memory_bytes": torch.cuda.max_memory_allocated()}), flush=True)
