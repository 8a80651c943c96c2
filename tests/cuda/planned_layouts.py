#!/usr/bin/env python3
"""Measures the layouts that `trireme plan` ranks first on all GPUs of a machine, in bf16 and FP8, and prints each step
with its prediction.

    tests/cuda/planned_layouts.py configs/llama_3_8b.yaml --set data.global_batch=128
    tests/cuda/planned_layouts.py configs/qwen3_30b_a3b.yaml --set data.global_batch=128 --set parallel.ep=8
    tests/cuda/planned_layouts.py configs/llama_3_8b.yaml --gpus 2 --set model.layers=8 --set data.global_batch=16

Fields of --set hold in the plan and in the measurement; those of `parallel` limit the search.
"""
import argparse
import json
import subprocess
import sys

FIELDS = ("tp", "pp", "dp", "cp", "ep", "chunks", "schedule", "zero", "recompute")


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def sets(assignments):
    return [word for assignment in assignments for word in ("--set", assignment)]


def layout_of(row):
    """Returns the fields of a planned layout as assignments."""
    fields = [f"parallel.{name}={row[name]}" for name in FIELDS] + [f"data.micro_batch={row['micro_batch']}"]
    if "layers_per_chunk" in row:
        fields.append("parallel.layers_per_chunk=" + ",".join(map(str, row["layers_per_chunk"])))
    return fields


def print_row(numbers, planned, fields, row, gpus):
    predicted = 1e3 * planned["step_s"]
    print(numbers, *(field.split(".")[1] for field in fields))
    print(f"  {row['ms']:.1f} ms ({row['fastest_ms']:.1f} to {row['slowest_ms']:.1f}), predicted {predicted:.1f} "
          f"({100 * predicted / row['ms'] - 100:+.1f} %); {row['tokens_per_s'] / gpus:.0f} tokens/s per GPU, MFU "
          f"{100 * row['mfu']:.1f} % ({100 * row['mfu_causal']:.1f} % causal); {row['memory_bytes'] / 2**30:.1f} GiB, "
          f"planned {planned['memory_bytes'] / 2**30:.1f}; {row['gpu']}")
    for stage, spent in enumerate(row["spent_ms"]):
        print(f"  stage {stage}:", ", ".join(f"{name} {ms:.1f}" for name, ms in spent.items() if ms >= 0.05))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--cluster", default="configs/clusters/h100.yaml")
    parser.add_argument("--numbers", nargs="+", default=["compute", "fp8"], help="precision.gemm")
    parser.add_argument("--layouts", type=int, default=3, help="number of layouts of each format")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    trireme, failed = f"{options.build}/bin/trireme", 0
    for numbers in options.numbers:
        common = ["run.device=cuda", f"precision.gemm={numbers}", *options.set]
        plan = run(trireme, "plan", options.config, "--ranks", str(options.gpus), "--cluster", options.cluster,
                   "--keep", str(options.layouts), "--json", *sets(common))
        for planned in plan["layouts"]:
            fields = layout_of(planned)
            try:
                row = run("slurm/mpirun", "-n", str(options.gpus), trireme, "bench", "step", options.config, "--warmup",
                          str(options.warmup), "--steps", str(options.steps), "--profiled", "0", "--json",
                          *sets(common + fields))
            except RuntimeError as error:  # the other layouts are still measured
                print(numbers, *fields, f"failed: {error}")
                failed += 1
                continue
            print_row(numbers, planned, fields, row, options.gpus)
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
