#!/usr/bin/env python3
"""Tests compare.py with simulated programs: how it reads their output, schedules them and formats the table. Needs no
GPU and no peer package."""
import argparse
import json
import statistics
import sys
import unittest
from dataclasses import replace
from unittest import mock

import compare
from compare import Answer, Figures, Program, measure, programs, read_answer, run, table
from shape import Shape, document_lengths, random_u64


def python(code):
    return Program("p", [sys.executable, "-c", code])


class Answers(unittest.TestCase):
    def test_trireme_tells_its_own_rate_and_a_peer_its_steps(self):
        own = {"name": "x", "ms": 4.0, "tokens_per_s": 1000.5}
        self.assertEqual(read_answer(f"plan of the job:\n{json.dumps(own)}\n"), Answer(1000.5, line=own))
        peer = 'a warning\n{"ms": [30.0, 10.0, 20.0], "tokens": 40}\n{not json\n'
        self.assertEqual(read_answer(peer).tokens_per_s, 2000.0)  # 40 tokens in the median step of 20 ms
        self.assertEqual(read_answer('{"skipped": "No module named x"}'), Answer(reason="skipped: No module named x"))
        self.assertEqual(read_answer("nothing\n"), Answer())

    def test_a_program_that_fails_is_told_in_its_words(self):
        self.assertEqual(run(python("print('{\"ms\": [10.0], \"tokens\": 5}')")).tokens_per_s, 500.0)
        code = "import sys; print('out of memory', file=sys.stderr); print('-----', file=sys.stderr); sys.exit(3)"
        self.assertEqual(run(python(code)), Answer(reason="failed: out of memory"))
        self.assertEqual(run(python("import sys; sys.exit(3)")), Answer(reason="failed: exit status 3"))
        self.assertTrue(run(Program("p", ["/no/such/program"])).reason.startswith("failed: "))
        with mock.patch.object(compare, "RUN_SECONDS", 0.2):
            slept = run(python("import time; time.sleep(60)"))
            self.assertEqual(slept, Answer(reason="failed: no answer within 0.2 s"))

    def test_a_peer_without_its_package_says_so(self):
        code = "import sys; sys.path.insert(0, %r); from shape import need; need('no_such_package'); print('on')"
        self.assertEqual(run(python(code % str(compare.HERE))).reason, "skipped: No module named 'no_such_package'")


class Alternation(unittest.TestCase):
    def test_programs_take_turns_and_what_is_missing_is_asked_once(self):
        asked = []
        answers = {"a": [(100, ""), (300, ""), (200, "")], "b": [(None, "skipped: x")],
                   "c": [(50, ""), (None, "failed: y")]}

        def run_one(program, seconds):
            asked.append(program.name)
            return Answer(*answers[program.name].pop(0))

        a, b, c = measure({"shape": [Program(name, []) for name in "abc"]}, 3, run_one=run_one)["shape"]
        self.assertEqual("".join(asked), "abc" "ac" "a")
        self.assertEqual((a.rounds, a.tokens_per_s, a.reason), ([100, 300, 200], 200, ""))
        self.assertEqual(a.scatter, 1.0)
        self.assertEqual((b.rounds, b.tokens_per_s, b.reason), ([], None, "skipped: x"))
        self.assertEqual((c.rounds, c.reason), ([50], "failed: y"))

    def test_time_ends_the_comparison_and_what_was_measured_stays(self):
        now, asked, written = 0.0, [], []

        def run_one(program, seconds):  # every run needs 10 s
            nonlocal now
            asked.append((program.name, seconds))
            now += min(10.0, seconds)
            return Answer(100) if seconds >= 10 else Answer(reason=f"failed: no answer within {seconds:g} s")

        all_programs = {"one": [Program("a", []), Program("b", [])], "two": [Program("c", []), Program("d", [])]}
        found = measure(all_programs, 2, 54.0, run_one, lambda: now,
                        lambda so_far: written.append(sum(len(row.rounds) for rows in so_far.values() for row in rows)))
        self.assertEqual("".join(name for name, _ in asked), "abcd" "ab")  # a round covers all shapes
        self.assertEqual([seconds for _, seconds in asked], [54, 44, 34, 24, 14, 4])
        (a, b), (c, d) = found["one"], found["two"]
        self.assertEqual([len(row.rounds) for row in (a, b, c, d)], [2, 1, 1, 1])
        # The limit stopped b's second run, which does not count as a failure.
        self.assertEqual({row.reason for row in (a, b, c, d)}, {""})
        self.assertEqual(written, [1, 2, 3, 4, 5, 5])
        self.assertEqual(a.seconds, [10, 10])
        now = 0.0
        (a, b), (c, d) = measure(all_programs, 2, 14.0, run_one, lambda: now).values()
        self.assertEqual((a.reason, b.reason, d.rounds, d.reason), ("", "no time was left", [], "no time was left"))

    def test_preparing_runs_each_of_pytorchs_peers_once(self):
        asked = []

        def run_one(program, environment):
            asked.append((program.name, environment["CUDA_VISIBLE_DEVICES"], environment["PEER_STEPS"]))
            return Answer(1000)

        all_programs = {name: programs("build", *compare.SHAPES[1][name], 1) for name in ("13b", "llama8k")}
        with mock.patch("builtins.print"):
            compare.prepare(all_programs, ["0", "1"], run_one)
        self.assertEqual(sorted(name for name, _, _ in asked),
                         sorted(2 * ["PyTorch compile", "torchao FP8, tensor scales", "torchao FP8, row scales"]))
        self.assertLessEqual({gpu for _, gpu, _ in asked}, {"0", "1"})

    def test_the_table_has_ratios_of_the_best_of_ours(self):
        rows = [Figures("Trireme dp 2", [30000, 33000, 31000]), Figures("Trireme tp 2", [40000]),
                Figures("peer", [20000, 25000]), Figures("gone", [], "skipped: No module named 'x'")]
        self.assertEqual(table("13b", rows, 2)[4:], [
            "| Trireme dp 2 | 31.0k | 9.7 % |  |  |",
            "| Trireme tp 2 | 40.0k | 0.0 % |  |  |",
            f"| peer | 22.5k | {100 * 5000 / statistics.median([20000, 25000]):.1f} % | 1.78 × |  |",
            "| gone | skipped: No module named 'x' | | | |"])
        formats = [Figures("Trireme", [30000]), Figures("Trireme FP8", [60000]), Figures("peer", [20000]),
                   Figures("peer FP8, row scales", [40000]), Figures("Trireme FP8, moments in bf16", [90000])]
        self.assertEqual([line.split("|")[4].strip() for line in table("13b", formats, 1)[6:]],
                         ["1.50 ×", "1.50 ×", ""])
        alone = [Figures("Trireme", [], "failed: x"), Figures("peer", [20000])]
        self.assertEqual(table("13b", alone, 1)[-1], "| peer | 20.0k | 0.0 % |  |  |")

    def test_the_table_has_the_clock_and_power_that_trireme_tells(self):
        loads = [{"gpu": {"sm_mhz": mhz, "watts": watts, "watts_limit": 700}} for mhz, watts in
                 ((1400, 690), (1500, 698), (1410, 696))]
        rows = [Figures("Trireme", [1000, 1000, 1000], lines=loads), Figures("peer", [1000], lines=[{"ms": [1.0]}])]
        self.assertEqual([line.split("|")[-2].strip() for line in table("13b", rows, 1)[4:]],
                         ["1410 MHz, 696 of 700 W", ""])


class Programs(unittest.TestCase):
    def test_words_choose_programs_by_shape_and_name(self):
        of_shape = [Program(name, []) for name in ("Trireme", "Trireme FP8, moments in bf16", "peer FP8", "peer")]

        def names(without=(), only=()):
            options = argparse.Namespace(without=without, only=only)
            return [program.name for program in compare.chosen(of_shape, "13b", options)]

        self.assertEqual(names(), [program.name for program in of_shape])
        self.assertEqual(names(without=["FP8"]), ["Trireme", "peer"])
        self.assertEqual(names(only=["moments", "13b: peer"]), ["Trireme FP8, moments in bf16", "peer FP8", "peer"])
        self.assertEqual(names(without=["llama8k: Trireme", "moments"], only=["Trireme"]), ["Trireme"])
        with mock.patch("sys.argv", ["compare.py", "--only", "Nonesuch", "13b"]), mock.patch("sys.stderr"), \
                self.assertRaises(SystemExit):
            compare.main()

    def each(self, of_trireme):
        for gpus, shapes in compare.SHAPES.items():
            for config, shape in shapes.values():
                text = (compare.ROOT / f"configs/{config}.yaml").read_text(encoding="utf-8")
                self.assertEqual("qk_norm: head" in text, shape.qk_norm, config)
                all_programs = programs("build", config, shape, gpus)
                self.assertEqual(len({program.name for program in all_programs}), len(all_programs))
                for program in all_programs:
                    if program.name.startswith("Trireme") == of_trireme:
                        yield gpus, shape, program.command

    def test_peers_get_the_shape(self):
        for gpus, shape, command in self.each(of_trireme=False):
            given = Shape(**json.loads(command[-1]))
            self.assertEqual(given.batch, shape.batch * (gpus if command[-2].startswith("tp") else 1))
            self.assertEqual(replace(given, batch=shape.batch), shape)

    def test_trireme_gets_the_shape(self):
        for gpus, shape, command in self.each(of_trireme=True):
            settings = dict(word.split("=") for word in command if "=" in word)
            self.assertEqual(int(settings["model.layers"]), shape.layers)
            self.assertEqual(int(settings["model.kv_heads"]), shape.kv_heads)
            self.assertEqual(int(settings["model.ffn_hidden"]), shape.ffn)
            self.assertEqual(int(settings["data.global_batch"]), shape.batch * gpus)
            self.assertEqual(int(settings["data.micro_batch"]) * int(settings["parallel.dp"]), shape.batch * gpus)
            self.assertEqual(int(settings["parallel.dp"]) * int(settings["parallel.tp"]), gpus)
            if "data.document_mask" in settings:
                self.assertTrue(shape.documents)

    def test_documents_are_those_of_bench_step(self):
        self.assertEqual(random_u64(0x0123456789ABCDEF, 0xFEDCBA9876543210), 3171560642782073084)
        self.assertEqual(document_lengths(0, 8192), [3667, 3776, 749])
        self.assertEqual(document_lengths(2, 64), [17, 16, 14, 17])
        config, shape = compare.SHAPES[1]["documents"]
        own, peers = [[program for program in programs("build", config, shape, 1)
                       if program.name.startswith("Trireme") == of_trireme] for of_trireme in (True, False)]
        self.assertEqual(["data.document_mask=true" in program.command for program in own], [True, True, False])
        self.assertTrue(all(Shape(**json.loads(program.command[-1])).documents for program in peers))


if __name__ == "__main__":
    unittest.main()
