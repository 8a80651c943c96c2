#!/usr/bin/env python3
"""Compares Trireme's throughput with that of its peers: the programs run the same shapes on the same GPUs in
alternation. Prints one table with ratios per shape.

    compare.py [--build build-gpu] [--rounds 3] [--gpus 1] [--seconds N] [--without TEXT] [--only TEXT] [--json FILE]
               [SHAPE ...]
    compare.py --prepare [SHAPE ...]

Each round runs every program once, Trireme first, so that a GPU that heats up slows all programs equally; a round
covers all shapes in the given order. A program's figure is the median of the medians of its rounds; the table also
shows the spread of the rounds. A peer that fails, or whose package is missing, is listed with its message. Exit status:
0, or 1 if Trireme itself failed.

--seconds limits the whole comparison: the running program is stopped, and the table shows what was measured so far.
--prepare runs each PyTorch program for two steps, one at a time per visible GPU, which fills the cache of
torch.compile.

All programs use random tokens, bf16 compute, fp32 master weights, AdamW and no recomputation, except where the first
lines of a peer say otherwise. lib/bench/measurements/peers.md has differences and results. A new peer prints the JSON
line of torch_peer.py, and has a row in this file. tests/cuda/measure.sh builds Trireme for this.
"""
import argparse
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
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


def with_documents(shape):
    return replace(shape, documents=True)


def qwen3_8b(layers, seq_len, batch):
    return Shape("llama", 4096, layers, 32, 8, 12288, 151936, seq_len, batch, qk_norm=True)


# {number of GPUs: {name: (Trireme's config, shape)}}. With several GPUs, the shape's batch is the share of one GPU.
SHAPES = {
    1: {
        "124m": ("gpt2_124m", gpt(768, 12, 12, 1024, 64)),
        "1b3": ("gpt_1b3", gpt(2048, 24, 16, 2048, 8)),
        "1558m": ("gpt2_1558m", gpt(1600, 48, 25, 1024, 16)),
        "13b": ("gpt_13b", gpt(5120, 4, 40, 2048, 4)),
        "175b": ("gpt_13b", gpt(12288, 2, 96, 2048, 2)),
        "llama8k": ("llama_8b", llama_8b(8, 8192, 1)),
        "llama2k": ("llama_8b", llama_8b(8, 2048, 4)),
        "llama3": ("llama_3_8b", llama_8b(8, 8192, 1)),
        "documents": ("llama_8b", with_documents(llama_8b(8, 8192, 1))),
        "qwen3": ("qwen3_8b", qwen3_8b(8, 4096, 2)),
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
class Answer:
    """The result of one run: tokens per second, or the reason for their absence, and the program's JSON line."""
    tokens_per_s: float | None = None
    reason: str = ""
    line: dict = field(default_factory=dict)


@dataclass
class Figures:
    """The tokens per second of each round of one program, or the reason for their absence."""
    name: str
    rounds: list = field(default_factory=list)
    reason: str = ""
    seconds: list = field(default_factory=list)  # the duration of each run
    lines: list = field(default_factory=list)  # the JSON line of each round

    @property
    def tokens_per_s(self):
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def scatter(self):
        return (max(self.rounds) - min(self.rounds)) / self.tokens_per_s

    @property
    def load(self):
        """The GPU's clock and power during the measured steps as text. Only Trireme reports them."""
        loads = [line["gpu"] for line in self.lines if line.get("gpu")]
        if not loads:
            return ""
        clock, power, limit = (statistics.median(load[key] for load in loads)
                               for key in ("sm_mhz", "watts", "watts_limit"))
        return f"{clock:.0f} MHz, {power:.0f} of {limit:.0f} W"


def trireme(build, config, shape, gpus, name="Trireme", gemm="compute", moments="fp32", **parallel):
    """Returns the program that trains `shape.batch` sequences per GPU. Axes not in `parallel` have size 1. `gemm` is
    the value of precision.gemm."""
    axes = {"tp": 1, "pp": 1, "dp": 1, "chunks": 1, "schedule": "1f1b", "zero": 1, "recompute": "none"} | parallel
    batch = shape.batch * gpus
    settings = {"run.device": "cuda", "model.hidden": shape.hidden, "model.layers": shape.layers,
                "model.heads": shape.heads, "model.kv_heads": shape.kv_heads, "model.ffn_hidden": shape.ffn,
                "model.vocab": shape.vocab, "model.seq_len": shape.seq_len, "data.global_batch": batch,
                "data.micro_batch": batch // axes["dp"], "precision.gemm": gemm, "optimizer.moments": moments}
    if shape.documents:
        settings["data.document_mask"] = "true"
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
    """Returns the programs to compare for a shape, Trireme's own first."""
    if shape.documents:
        return [trireme(build, config, shape, 1), trireme(build, config, shape, 1, "Trireme FP8", "fp8"),
                trireme(build, config, replace(shape, documents=False), 1, "Trireme without documents"),
                peer("PyTorch FlexAttention", "torch_peer.py", "flex", shape),
                peer("PyTorch varlen_attn", "torch_peer.py", "varlen", shape)]
    if gpus == 1:
        block = [] if shape.kind == "llama" else [peer("Transformer Engine FP8, blocks", "te_peer.py", "block", shape)]
        return [trireme(build, config, shape, 1), trireme(build, config, shape, 1, "Trireme FP8", "fp8"),
                trireme(build, config, shape, 1, "Trireme, moments in bf16", moments="bf16"),
                trireme(build, config, shape, 1, "Trireme FP8, moments in bf16", "fp8", "bf16"),
                peer("PyTorch compile", "torch_peer.py", "bf16", shape),
                peer("Transformer Engine", "te_peer.py", "bf16", shape),
                peer("torchao FP8, tensor scales", "torch_peer.py", "fp8_tensor", shape),
                peer("torchao FP8, row scales", "torch_peer.py", "fp8_row", shape),
                peer("Transformer Engine FP8, delayed", "te_peer.py", "delayed", shape),
                peer("Transformer Engine FP8, current", "te_peer.py", "current", shape)] + block
    found = [trireme(build, config, shape, gpus, f"Trireme{name} {axis} {gpus}", gemm, **{axis: gpus})
             for axis in ("dp", "tp") for name, gemm in (("", "compute"), (" FP8", "fp8"))]
    found += [torchrun("PyTorch FSDP2", "fsdp2", shape, gpus)]
    if shape.kind == "gpt":  # all GPUs share one batch
        whole = replace(shape, batch=shape.batch * gpus)
        found += [torchrun("PyTorch tp", "tp", whole, gpus), torchrun("PyTorch tp, async", "tp_async", whole, gpus)]
    return found


def chosen(of_shape, shape_name, options):
    """Returns the programs of a shape that --only and --without select."""
    def has(program, texts):
        return any(text in f"{shape_name}: {program.name}" for text in texts)
    return [program for program in of_shape
            if not has(program, options.without) and (not options.only or has(program, options.only))]


def read_answer(text):
    """Reads the last JSON line of a program's output. Returns an Answer with neither figures nor a reason if there is
    none."""
    for line in reversed(text.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "skipped" in answer:
            return Answer(reason="skipped: " + answer["skipped"])
        if "tokens_per_s" in answer:  # Trireme's line, computed from its median step
            return Answer(answer["tokens_per_s"], line=answer)
        if "ms" in answer:
            return Answer(answer["tokens"] / statistics.median(answer["ms"]) * 1e3, line=answer)
    return Answer()


def run(program, seconds=None, environment=None):
    """Runs the program and returns its Answer. Kills it after `seconds` (default: RUN_SECONDS)."""
    seconds = RUN_SECONDS if seconds is None else seconds
    try:
        process = subprocess.Popen(program.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                                   start_new_session=True, env={**os.environ, **(environment or {})})
    except OSError as error:
        return Answer(reason=f"failed: {error}")
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # including the processes that it started
        process.communicate()
        return Answer(reason=f"failed: no answer within {seconds:g} s")
    answer = read_answer(out)
    if answer.tokens_per_s is not None or answer.reason:
        return answer
    lines = [line for line in (out + errors).splitlines() if any(letter.isalpha() for letter in line)]
    return Answer(reason=f"failed: {lines[-1].strip() if lines else f'exit status {process.returncode}'}")


def measure(all_programs, rounds, seconds=float("inf"), run_one=run, clock=time.monotonic, after_each=None):
    """Runs all programs for the given number of rounds and returns {shape: [Figures]}. A program that failed once is
    not started again. After `seconds`, no program is started; a run stopped by that limit does not count as a
    failure."""
    found = {shape: [Figures(program.name) for program in of_shape] for shape, of_shape in all_programs.items()}
    end = clock() + seconds
    pairs = [pair for shape in all_programs for pair in zip(all_programs[shape], found[shape])]
    for program, figures in pairs * rounds:
        begin = clock()
        if figures.reason or begin >= end:
            continue
        answer = run_one(program, min(RUN_SECONDS, end - begin))
        if answer.tokens_per_s is not None:
            figures.rounds.append(answer.tokens_per_s)
            figures.seconds.append(clock() - begin)
            figures.lines.append(answer.line)
        elif clock() < end:
            figures.reason = answer.reason
        if after_each:
            after_each(found)
    for _, figures in pairs:
        if not figures.rounds and not figures.reason:
            figures.reason = "no time was left"
    return found


def prepare(all_programs, gpus, run_one=run):
    """Runs each PyTorch program of `all_programs` for two steps, one at a time per GPU of `gpus`. Prints the duration
    of each."""
    waiting = queue.SimpleQueue()
    for shape, of_shape in all_programs.items():
        for program in of_shape:
            if program.name.startswith("PyTorch") or program.name.startswith("torchao"):
                waiting.put((shape, program))

    def work(gpu):
        while True:
            try:
                shape, program = waiting.get_nowait()
            except queue.Empty:
                return
            begin = time.monotonic()
            answer = run_one(program, environment={"CUDA_VISIBLE_DEVICES": gpu, "PEER_STEPS": "1"})
            outcome = answer.reason if answer.tokens_per_s is None else "ready"
            print(f"{shape}, {program.name}: {outcome} after {time.monotonic() - begin:.0f} s", flush=True)

    workers = [threading.Thread(target=work, args=(gpu,)) for gpu in gpus]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def table(shape_name, figures, gpus):
    """Returns the table as lines of Markdown. The ratio divides Trireme's best figure of the same precision (FP8 or
    bf16) by the row's figure. It uses only Trireme's runs with the peers' settings: fp32 moments, and documents if the
    shape has them."""
    own = {fp8: [row.tokens_per_s for row in figures if row.name.startswith("Trireme") and row.rounds
                 and ("FP8" in row.name) == fp8 and "moments" not in row.name and "without" not in row.name]
           for fp8 in (False, True)}
    lines = [f"### {shape_name}, {gpus} GPU{'s' if gpus > 1 else ''}", "",
             "| program | tokens/s | rounds apart | Trireme is | clock, power |", "|---|---|---|---|---|"]
    for row in figures:
        if not row.rounds:
            lines.append(f"| {row.name} | {row.reason} | | | |")
            continue
        best = own["FP8" in row.name]
        ratio = f"{max(best) / row.tokens_per_s:.2f} ×" if best and not row.name.startswith("Trireme") else ""
        note = f" ({row.reason})" if row.reason else ""
        lines.append(f"| {row.name} | {row.tokens_per_s / 1e3:.1f}k{note} | {100 * row.scatter:.1f} % | {ratio} "
                     f"| {row.load} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build-gpu", help="build folder, relative to the repository's root")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=1, choices=sorted(SHAPES))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit of the whole comparison")
    texts = dict(action="append", default=[], metavar="TEXT")
    parser.add_argument("--without", **texts,
                        help="skip the programs whose \"SHAPE: NAME\" contains TEXT; may be repeated")
    parser.add_argument("--only", **texts,
                        help="run only the programs whose \"SHAPE: NAME\" contains TEXT; may be repeated")
    parser.add_argument("--prepare", action="store_true", help="only fill the cache of torch.compile")
    parser.add_argument("--json", help="file to write all figures to; it is rewritten after each program")
    parser.add_argument("shapes", nargs="*", help="names of shapes (default: all)")
    options = parser.parse_args()
    known = SHAPES[options.gpus]
    unknown = [name for name in options.shapes if name not in known]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such shape for {options.gpus} GPUs; expected one of {', '.join(known)}")
    all_programs = {name: chosen(programs(options.build, *known[name], options.gpus), name, options)
                    for name in options.shapes or known}
    if not any(all_programs.values()):
        parser.error("--only and --without exclude every program")
    if options.prepare:
        prepare(all_programs, os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))
        return 0

    def write(found):
        if not options.json:
            return
        everything = {shape: {row.name: {"tokens_per_s": row.rounds, "reason": row.reason, "seconds": row.seconds,
                                         "answers": row.lines}
                              for row in figures} for shape, figures in found.items()}
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")

    found = measure(all_programs, options.rounds, options.seconds, after_each=write)
    write(found)
    for name, figures in found.items():
        print("\n".join(table(name, figures, options.gpus)) + "\n", flush=True)
    own = [row for figures in found.values() for row in figures if row.name.startswith("Trireme")]
    return 1 if any(row.reason.startswith("failed") for row in own) else 0


if __name__ == "__main__":
    sys.exit(main())
