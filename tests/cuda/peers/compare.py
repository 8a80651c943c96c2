#!/usr/bin/env python3
"""Trireme beside its peers: the same shapes on the same GPUs, in alternation; one table with ratios.

    compare.py [--build build-gpu] [--rounds 3] [--gpus 1] [--json FILE] [SHAPE ...]

Every program runs once a round, Trireme first, so that a GPU that grows hot slows all alike; a program's figure is the
median of its rounds' medians, and beside it stands how far apart its rounds are. A peer whose package is missing, or
that fails, is listed with its words. Exit status: 0, or 1 where Trireme itself failed.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from shape import Shape

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RUN_SECONDS = 900


def gpt(hidden, layers, heads, seq_len, batch):
    return Shape("gpt", hidden, layers, heads, heads, 4 * hidden, 50304, seq_len, batch)


def llama_8b(layers, seq_len, batch):
    return Shape("llama", 4096, layers, 32, 8, 14336, 128256, seq_len, batch)


# By name: the config that Trireme starts from, and the shape, of a GPU's share of the batch where there are several.
SHAPES = {
    1: {
        "124m": ("gpt2_124m", gpt(768, 12, 12, 1024, 64)),
        "1b3": ("gpt_1b3", gpt(2048, 24, 16, 2048, 8)),
        "1558m": ("gpt2_1558m", gpt(1600, 48, 25, 1024, 16)),
        "13b": ("gpt_13b", gpt(5120, 4, 40, 2048, 4)),
        "175b": ("gpt_13b", gpt(12288, 2, 96, 2048, 2)),
        "llama8k": ("llama_8b", llama_8b(8, 8192, 1)),
        "llama2k": ("llama_8b", llama_8b(8, 2048, 4)),
    },
    2: {
        "13b": ("gpt_13b", gpt(5120, 20, 40, 2048, 4)),
        "llama8k": ("llama_8b", llama_8b(16, 8192, 1)),
    },
}


@dataclass
class Program:
    name: str
    command: list


@dataclass
class Figures:
    """Tokens a second, a number a round, or why there are none."""
    name: str
    rounds: list = field(default_factory=list)
    reason: str = ""

    @property
    def tokens_per_s(self):
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def scatter(self):
        return (max(self.rounds) - min(self.rounds)) / self.tokens_per_s


def trireme(build, config, shape, gpus, name="Trireme", gemm="compute", **parallel):
    """`shape.batch` sequences a GPU; the parallel axes that are not named are 1. gemm: precision.gemm."""
    axes = {"tp": 1, "pp": 1, "dp": 1, "chunks": 1, "schedule": "1f1b", "zero": 1, "recompute": "none"} | parallel
    batch = shape.batch * gpus
    settings = {"run.device": "cuda", "model.hidden": shape.hidden, "model.layers": shape.layers,
                "model.heads": shape.heads, "model.kv_heads": shape.kv_heads, "model.ffn_hidden": shape.ffn,
                "model.vocab": shape.vocab, "model.seq_len": shape.seq_len, "data.global_batch": batch,
                "data.micro_batch": batch // axes["dp"], "precision.gemm": gemm}
    settings |= {f"parallel.{axis}": n for axis, n in axes.items()}
    command = [str(ROOT / "slurm/mpirun"), "-n", str(gpus), str(ROOT / build / "bin/trireme"), "bench", "step",
               str(ROOT / f"configs/{config}.yaml"), "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return Program(name, command)


def peer(name, script, mode, shape):
    return Program(name, [sys.executable, str(HERE / script), mode, shape.to_json()])


def torchrun(name, mode, shape, gpus):
    return Program(name, [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus),
                          str(HERE / "distributed_peer.py"), mode, shape.to_json()])


def programs(build, config, shape, gpus):
    """Trireme's own first."""
    if gpus == 1:
        block = [] if shape.kind == "llama" else [peer("Transformer Engine FP8, blocks", "te_peer.py", "block", shape)]
        return [trireme(build, config, shape, 1), trireme(build, config, shape, 1, "Trireme FP8", "fp8"),
                peer("PyTorch compile", "torch_peer.py", "bf16", shape),
                peer("Transformer Engine", "te_peer.py", "bf16", shape),
                peer("torchao FP8, tensor scales", "torch_peer.py", "fp8_tensor", shape),
                peer("torchao FP8, row scales", "torch_peer.py", "fp8_row", shape),
                peer("Transformer Engine FP8, delayed", "te_peer.py", "delayed", shape),
                peer("Transformer Engine FP8, current", "te_peer.py", "current", shape)] + block
    found = [trireme(build, config, shape, gpus, f"Trireme{name} {axis} {gpus}", gemm, **{axis: gpus})
             for axis in ("dp", "tp") for name, gemm in (("", "compute"), (" FP8", "fp8"))]
    found += [torchrun("PyTorch FSDP2", "fsdp2", shape, gpus)]
    if shape.kind == "gpt":  # one batch for all GPUs
        whole = replace(shape, batch=shape.batch * gpus)
        found += [torchrun("PyTorch tp", "tp", whole, gpus), torchrun("PyTorch tp, async", "tp_async", whole, gpus)]
    return found


def read_answer(text):
    """(tokens a second, "") of a program's output, or (None, why not). Its last line that is JSON counts."""
    for line in reversed(text.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "skipped" in answer:
            return None, "skipped: " + answer["skipped"]
        if "tokens_per_s" in answer:  # Trireme's, at its median step
            return answer["tokens_per_s"], ""
        if "ms" in answer:
            return answer["tokens"] / statistics.median(answer["ms"]) * 1e3, ""
    return None, ""


def run(program):
    try:
        process = subprocess.Popen(program.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                                   start_new_session=True)
    except OSError as error:
        return None, f"failed: {error}"
    try:
        out, errors = process.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it has started
        process.communicate()
        return None, f"failed: no answer within {RUN_SECONDS} s"
    tokens_per_s, reason = read_answer(out)
    if tokens_per_s is not None or reason:
        return tokens_per_s, reason
    words = [line for line in (out + errors).splitlines() if any(letter.isalpha() for letter in line)]
    return None, f"failed: {words[-1].strip() if words else f'exit status {process.returncode}'}"


def measure(all_programs, rounds, run_one=run):
    """Figures of each program. One that once gave none is not started again."""
    figures = [Figures(program.name) for program in all_programs]
    for _ in range(rounds):
        for program, of_it in zip(all_programs, figures):
            if of_it.reason:
                continue
            tokens_per_s, of_it.reason = run_one(program)
            if tokens_per_s is not None:
                of_it.rounds.append(tokens_per_s)
    return figures


def table(shape_name, figures, gpus):
    """Lines of Markdown. The ratio is the best of Trireme's to the row's, FP8 to FP8 and bf16 to bf16."""
    own = {fp8: [row.tokens_per_s for row in figures
                 if row.name.startswith("Trireme") and row.rounds and ("FP8" in row.name) == fp8]
           for fp8 in (False, True)}
    lines = [f"### {shape_name}, {gpus} GPU{'s' if gpus > 1 else ''}", "",
             "| program | tokens/s | rounds apart | Trireme is |", "|---|---|---|---|"]
    for row in figures:
        if not row.rounds:
            lines.append(f"| {row.name} | {row.reason} | | |")
            continue
        ours = own["FP8" in row.name]
        ratio = f"{max(ours) / row.tokens_per_s:.2f} ×" if ours and not row.name.startswith("Trireme") else ""
        note = f" ({row.reason})" if row.reason else ""
        lines.append(f"| {row.name} | {row.tokens_per_s / 1e3:.1f}k{note} | {100 * row.scatter:.1f} % | {ratio} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build-gpu", help="folder of the build, under the repository's root")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=1, choices=sorted(SHAPES))
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("shapes", nargs="*", help="names; all where none is given")
    options = parser.parse_args()
    known = SHAPES[options.gpus]
    unknown = [name for name in options.shapes if name not in known]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such shape for {options.gpus} GPUs; there are {', '.join(known)}")
    everything, failed = {}, False
    for name in options.shapes or known:
        config, shape = known[name]
        figures = measure(programs(options.build, config, shape, options.gpus), options.rounds)
        print("\n".join(table(name, figures, options.gpus)) + "\n", flush=True)
        everything[name] = {row.name: {"tokens_per_s": row.rounds, "reason": row.reason} for row in figures}
        failed |= any(row.reason for row in figures if row.name.startswith("Trireme"))
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
