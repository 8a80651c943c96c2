#!/usr/bin/env python3
"""Compares the token ids of trireme with those of the PyPI package `tiktoken`.

    tiktoken_agree.py TRIREME SCRATCH_DIR [--megabytes N] [--time]

The script trains the ranks, since the package downloads its own. Patterns and special tokens come from the package's
constructors. The text is that of agree.py. With --time, the script instead prints MB/s of one core's time for both.
"""
import argparse
import base64
import os
import pathlib
import sys
import time
import unittest.mock

import tiktoken
from tiktoken_ext import openai_public

import agree

def byte_letters():
    """Returns {letter: byte} of GPT-2, which openai_public contains as well."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + i): byte for i, byte in enumerate(hidden)}}


def trained_ranks(pattern, documents, vocab):
    letters = byte_letters()
    tokenizer = agree.trained(agree.sequence(agree.split(pattern)), documents, vocab)
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    spelled = [bytes(letters[c] for c in token) for token, _ in tokens
               if token != "<|endoftext|>" and len(token) <= 1024]  # trireme refuses longer ones
    # In a row of one letter, several pairs produce the same token, and the order of the merges must not matter. In some
    # encodings, white space that spans a line end is one word at the end of a text.
    more = [b"a" * n for n in range(2, 9)] + [b"\n ", b"\n  ", b"\n \t", b" \n\n "]
    return {token: rank for rank, token in enumerate(dict.fromkeys(spelled + more))}


def padded(ranks, count):
    """Extends the ranks to `count` tokens with tokens that occur in no text."""
    return ranks | {b"\xff%d" % rank: rank for rank in range(len(ranks), count)}


def package_encoding(name, ranks):
    """Returns the package's encoding of this name with these ranks instead of its own."""
    with unittest.mock.patch.multiple(openai_public, load_tiktoken_bpe=lambda *_, **__: ranks,
                                      data_gym_to_mergeable_bpe_ranks=lambda *_, **__: ranks):
        settings = getattr(openai_public, name)()
    settings.pop("explicit_n_vocab", None)
    return tiktoken.Encoding(**settings)


def encodings(documents):
    """Returns {file name: (encoding, id of the token that begins documents or None, ranks)}."""
    gpt2 = trained_ranks(agree.LLAMA3, documents, 6000)
    made = {f"{name}.tiktoken": (package_encoding(name, gpt2), None, gpt2)
            for name in ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")}
    # The package lacks the following ones; they follow the publications of their authors.
    special = {"<|endoftext|>": len(gpt2), "<|im_start|>": len(gpt2) + 1, "<|im_end|>": len(gpt2) + 2}
    special |= {f"<|extra_{i}|>": len(gpt2) + 3 + i for i in range(205)}
    made["qwen.tiktoken"] = (tiktoken.Encoding("qwen", pat_str=agree.QWEN, mergeable_ranks=gpt2,
                                               special_tokens=special), None, gpt2)
    names = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(4)),
             "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>",
             *(f"<|reserved_special_token_{i}|>" for i in range(5, 251))]
    llama3 = padded(gpt2, 128000)  # trireme recognizes the file by this number of ranks
    special = {name: len(llama3) + i for i, name in enumerate(names)}
    made["tokenizer.model"] = (tiktoken.Encoding("llama3", pat_str=agree.LLAMA3, mergeable_ranks=llama3,
                                                 special_tokens=special), len(llama3), llama3)
    return made


def save(ranks, path):
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trireme")
    parser.add_argument("scratch", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=1)
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    documents = agree.corpus(options.megabytes)
    made = encodings(documents[:150])
    text, out = options.scratch / "text.jsonl", options.scratch / "out"
    rows = ["a" * n + "b" + "a" * (n + 1) for n in range(1, 60)]
    specials = ["a<|endoftext|>b <|im_start|><|fim_prefix|> <|eot_id|>", "<|end_of_text|><|endofprompt|>"]
    spaces = ["x\n  ", "\n \t", "a\n  <|endoftext|>", "a \n\n ", "a\r\n \r\n", "a\n  b\n  ", " \n", "a\n \u3000"]
    samples = list(agree.SAMPLES.values()) + rows + specials + spaces
    for name, (encoding, begin, ranks) in made.items():
        path = options.scratch / name
        save(ranks, path)
        every = name in ("cl100k_base.tiktoken", "o200k_base.tiktoken")
        chosen = documents if options.time else samples + documents[:60] + (
            agree.every_character() + documents[60:] if every else [])
        agree.write_documents(text, chosen)
        start = os.times()
        native = agree.native_ids(options.trireme, path, text, out)
        end = os.times()
        used = end.children_user + end.children_system - start.children_user - start.children_system
        began = time.process_time()
        reference = [encoding.encode(document, allowed_special="all") for document in chosen]
        package = time.process_time() - began
        for document, ids, expected in zip(chosen, native, reference, strict=True):
            expected = ([] if begin is None else [begin]) + expected
            if ids.tolist() != expected:
                least = min(len(ids), len(expected))
                at = next((i for i in range(least) if ids[i] != expected[i]), least)
                sys.exit(f"{name}: token {at} of {document[:80]!r} is {ids[at:at + 4]}, not {expected[at:at + 4]}, "
                         f"near {encoding.decode(expected[max(at - 5, 0):at + 5])!r}")
        size = sum(len(document.encode()) for document in chosen)
        if options.time:
            print(f"{name}: {size / 1e6:.1f} MB: trireme data prepare {size / used / 1e6:.1f} MB/s, "
                  f"tiktoken {tiktoken.__version__} {size / package / 1e6:.1f} MB/s of one core's time")
        else:
            print(f"{name}: {sum(map(len, reference))} tokens of {len(chosen)} documents are equal")
    print("all well")


if __name__ == "__main__":
    main()
