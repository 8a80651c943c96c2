#!/usr/bin/env python3
"""Trireme alongside its peers: the same shapes on the same GPUs, in alternation; one table with ratios.

    compare.py [--build build-gpu] [--rounds 3] [--gpus 1] [--seconds N] [--without WORDS] [--only WORDS] [--json FILE]
               [SHAPE ...]
    compare.py --prepare [SHAPE ...]

Every program runs once a round, Trireme first, so that a GPU that grows hot slows all alike; a round goes through all
shapes in the order given. A program's figure is the median of its rounds' medians, and alongside it stands how far apart
its rounds are. A peer whose package is missing, or that fails, is listed with its words. Exit status: 0, or 1 where
Trireme itself failed.

--seconds ends the comparison there: what runs is stopped, and the table holds what was measured. --prepare runs each of
PyTorch's peers for two steps, one at a time on every visible GPU, so that torch.compile's results lie in its cache.
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
class Answer:
    """Tokens a second, or why there are none; and all that the program's line of JSON says."""
    tokens_per_s: float | None = None
    reason: str = ""
    line: dict = field(default_factory=dict)


@dataclass
class Figures:
    """Tokens a second, a number a round, or why there are none."""
    name: str
    rounds: list = field(default_factory=list)
    reason: str = ""
    seconds: list = field(default_factory=list)  # that each run took as a whole
    lines: list = field(default_factory=list)  # of JSON, one a round

    @property
    def tokens_per_s(self):
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def scatter(self):
        return (max(self.rounds) - min(self.rounds)) / self.tokens_per_s

    @property
    def load(self):
        """the GPU's clock and power in the measured steps, which Trireme reports."""
        loads = [line["gpu"] for line in self.lines if line.get("gpu")]
        if not loads:
            return ""
        clock, power, limit = (statistics.median(load[key] for load in loads)
                               for key in ("sm_mhz", "watts", "watts_limit"))
        return f"{clock:.0f} MHz, {power:.0f} of {limit:.0f} W"


def trireme(build, config, shape, gpus, name="Trireme", gemm="compute", moments="fp32", **parallel):
    """`shape.batch` sequences a GPU; the parallel axes that are not named are 1. gemm: precision.gemm."""
    axes = {"tp": 1, "pp": 1, "dp": 1, "chunks": 1, "schedule": "1f1b", "zero": 1, "recompute": "none"} | parallel
    batch = shape.batch * gpus
    settings = {"run.device": "cuda", "model.hidden": shape.hidden, "model.layers": shape.layers,
                "model.heads": shape.heads, "model.kv_heads": shape.kv_heads, "model.ffn_hidden": shape.ffn,
                "model.vocab": shape.vocab, "model.seq_len": shape.seq_len, "data.global_batch": batch,
                "data.micro_batch": batch // axes["dp"], "precision.gemm": gemm, "optimizer.moments": moments}
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
    if shape.kind == "gpt":  # one batch for all GPUs
        whole = replace(shape, batch=shape.batch * gpus)
        found += [torchrun("PyTorch tp", "tp", whole, gpus), torchrun("PyTorch tp, async", "tp_async", whole, gpus)]
    return found


def chosen(of_shape, shape_name, options):
    """Of a shape's programs those that --only and --without leave."""
    def has(program, all_words):
        return any(words in f"{shape_name}: {program.name}" for words in all_words)
    return [program for program in of_shape
            if not has(program, options.without) and (not options.only or has(program, options.only))]


def read_answer(text):
    """Of a program's output, whose last line that is JSON counts; neither figures nor a reason where there is none."""
    for line in reversed(text.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "skipped" in answer:
            return Answer(reason="skipped: " + answer["skipped"])
        if "tokens_per_s" in answer:  # Trireme's, at its median step
            return Answer(answer["tokens_per_s"], line=answer)
        if "ms" in answer:
            return Answer(answer["tokens"] / statistics.median(answer["ms"]) * 1e3, line=answer)
    return Answer()


def run(program, seconds=None, environment=None):
    """The program's Answer. It is stopped after `seconds`, by default RUN_SECONDS."""
    seconds = RUN_SECONDS if seconds is None else seconds
    try:
        process = subprocess.Popen(program.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                                   start_new_session=True, env={**os.environ, **(environment or {})})
    except OSError as error:
        return Answer(reason=f"failed: {error}")
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it has started
        process.communicate()
        return Answer(reason=f"failed: no answer within {seconds:g} s")
    answer = read_answer(out)
    if answer.tokens_per_s is not None or answer.reason:
        return answer
    words = [line for line in (out + errors).splitlines() if any(letter.isalpha() for letter in line)]
    return Answer(reason=f"failed: {words[-1].strip() if words else f'exit status {process.returncode}'}")


def measure(all_programs, rounds, seconds=float("inf"), run_one=run, clock=time.monotonic, after_each=None):
    """Figures of each program of each shape, {shape: [Figures]}. One that once gave none is not started again. After
    `seconds` none is started, and what is stopped then counts as not run."""
    found = {shape: [Figures(program.name) for program in of_shape] for shape, of_shape in all_programs.items()}
    end = clock() + seconds
    turns = [turn for shape in all_programs for turn in zip(all_programs[shape], found[shape])]
    for program, figures in turns * rounds:
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
    for _, figures in turns:
        if not figures.rounds and not figures.reason:
            figures.reason = "no time was left"
    return found


def prepare(all_programs, gpus, run_one=run):
    """Runs each peer of `all_programs` for two steps, one at a time on each GPU of `gpus`; prints what each took."""
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
            words = answer.reason if answer.tokens_per_s is None else "ready"
            print(f"{shape}, {program.name}: {words} after {time.monotonic() - begin:.0f} s", flush=True)

    workers = [threading.Thread(target=work, args=(gpu,)) for gpu in gpus]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def table(shape_name, figures, gpus):
    """Lines of Markdown. The ratio is the best of Trireme's to the row's, FP8 to FP8 and bf16 to bf16, all with moments
    in fp32, as the peers keep them."""
    own = {fp8: [row.tokens_per_s for row in figures if row.name.startswith("Trireme") and row.rounds
                 and ("FP8" in row.name) == fp8 and "moments" not in row.name]
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
    parser.add_argument("--build", default="build-gpu", help="folder of the build, under the repository's root")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=1, choices=sorted(SHAPES))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="the comparison ends after so many")
    words = dict(action="append", default=[], metavar="WORDS")
    parser.add_argument("--without", **words,
                        help="skip the programs of which \"SHAPE: NAME\" has these words; may be repeated")
    parser.add_argument("--only", **words,
                        help="run only the programs of which \"SHAPE: NAME\" has these words; may be repeated")
    parser.add_argument("--prepare", action="store_true", help="only fill torch.compile's cache")
    parser.add_argument("--json", help="file for all figures, rewritten after each program")
    parser.add_argument("shapes", nargs="*", help="names; all where none is given")
    options = parser.parse_args()
    known = SHAPES[options.gpus]
    unknown = [name for name in options.shapes if name not in known]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such shape for {options.gpus} GPUs; there are {', '.join(known)}")
    all_programs = {name: chosen(programs(options.build, *known[name], options.gpus), name, options)
                    for name in options.shapes or known}
    if not any(all_programs.values()):
        parser.error("--only and --without leave no program")
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
