#!/usr/bin/env python3
"""Times the loop of Megatron-LM's tools/preprocess_data.py and `trireme data prepare` on the same JSON lines.

    megatron_loop.py TRIREME SCRATCH_DIR [--megabytes N] [--workers N]

The PyPI package megatron-core contains only the writer, not the tool, and needs torch. This script therefore repeats
the tool's loop: a pool of workers parses lines of JSON, encodes them with a Hugging Face tokenizer and appends the
token that ends a document, and one process writes .bin and .idx. The loop lacks Megatron's wrappers, so it is somewhat
faster than the tool. The script checks that both write the same bytes, and prints MB/s of text by wall-clock time and
by the time of one core (quoted in lib/bench/measurements/tokenizers.md).
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import resource
import struct
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy as np
import tokenizers

import agree

tokenizer = end = None


def begin_worker(path):
    global tokenizer, end
    tokenizer = tokenizers.Tokenizer.from_file(path)
    end = tokenizer.token_to_id("<|endoftext|>")


def encode(line):
    return tokenizer.encode(json.loads(line)["text"]).ids + [end]


def prepare(text, tokenizer_path, prefix, workers):
    """Writes the .bin and .idx files of PREFIX as the tool does with --append-eod and --workers."""
    lengths, ends = [], [0]
    with open(text) as lines, multiprocessing.Pool(workers, begin_worker, (str(tokenizer_path),)) as pool, \
            open(f"{prefix}.bin", "wb") as tokens:
        for ids in pool.imap(encode, lines, 32):
            tokens.write(np.array(ids, dtype=np.uint16).tobytes())
            lengths.append(len(ids))
            ends.append(len(lengths))
    sizes = np.array(lengths, dtype=np.int32)
    places = np.zeros(len(lengths), dtype=np.int64)
    np.cumsum(sizes[:-1] * 2, out=places[1:])
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(ends)))
        for array in sizes, places, np.array(ends, dtype=np.int64):
            index.write(array.tobytes())


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def timed(what):
    clock, cpu = time.monotonic(), cpu_seconds()
    what()
    return time.monotonic() - clock, cpu_seconds() - cpu


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trireme")
    parser.add_argument("scratch", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    documents = agree.corpus(options.megabytes)
    made = agree.tokenizers_of(documents[:150])
    text = options.scratch / "text.jsonl"
    agree.write_documents(text, documents)
    size = sum(len(document.encode()) for document in documents) / 1e6
    for name in ("gpt2", "llama3", "qwen"):
        made[name].post_processor = None  # like the tool, the loop uses the output of the model alone
        folder = agree.save(made[name], name, options.scratch)
        reference, native = options.scratch / f"{name}_reference", options.scratch / f"{name}_native"
        megatron = timed(lambda: prepare(text, folder / "tokenizer.json", reference, options.workers))
        trireme = timed(lambda: subprocess.run(
            [options.trireme, "data", "prepare", "--tokenizer", folder, "--output", native, "--threads",
             str(options.workers), "--force", text], check=True, capture_output=True))
        for part in "bin", "idx":
            if reference.with_suffix(f".{part}").read_bytes() != native.with_suffix(f".{part}").read_bytes():
                sys.exit(f"{name}: the .{part} files differ")
        print(f"{name}, {options.workers} workers, {size:.1f} MB: trireme {size / trireme[0]:.1f} MB/s "
              f"({size / trireme[1]:.1f} per core), Megatron's loop {size / megatron[0]:.1f} MB/s "
              f"({size / megatron[1]:.1f} per core), ratio {megatron[0] / trireme[0]:.1f} "
              f"({megatron[1] / trireme[1]:.1f}); the files are equal", flush=True)


if __name__ == "__main__":
    main()
