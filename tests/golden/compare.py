#!/usr/bin/env python3
"""Compares two loss curves. A curve is a metrics.jsonl of `trireme train`, or a text with lines "step loss ...".

    compare.py CURVE REFERENCE [--tolerance 0.01] [--window 10] [--means] [--prefix]
    compare.py CURVE REFERENCE --spread FROM CURVE...

--spread derives the tolerance from a measurement. The curves after FROM are runs that differ from FROM only in the
order of their sums. The spread is the root mean square of their relative differences from FROM, at the step where it is
largest. The tolerance is SPREADS times the spread, and at least FLOOR, the rounding error of a loss summed in fp32.

Prints one line. Exit status: 0 if the curves agree within the tolerance at every step (--means: in the mean of every
window), 1 if they do not, 2 if they cannot be compared.
"""
import argparse
import json
import math
import sys


SPREADS = 4
FLOOR = 4 * 2.0 ** -23


def read(path):
    """Returns the curve as {step: loss}. A loss that is null in the file becomes NaN."""
    curve = {}
    with open(path) as file:
        for line in file:
            if line.startswith("{"):
                entry = json.loads(line)
                if "restart" in entry:  # later steps were lost and are repeated in the lines below
                    curve = {step: loss for step, loss in curve.items() if step <= entry["step"]}
                if "loss" in entry:
                    curve[entry["step"]] = math.nan if entry["loss"] is None else entry["loss"]
            elif line.strip() and not line.startswith("#"):
                step, loss = line.split()[:2]
                curve[int(step)] = float(loss)
    return curve


def relative(a, b):
    """Returns |a - b| / |b|, or infinity if either number is not finite, so that a NaN never passes the check."""
    return abs(a - b) / abs(b) if math.isfinite(a) and math.isfinite(b) and b != 0 else math.inf


def mean(values):
    return sum(values) / len(values)


def compare_with_spread(args, curve, reference, steps):
    start, *others = (read(path) for path in args.spread)
    if not others or any(other.keys() != start.keys() for other in others) or not start.keys() >= set(steps):
        print("--spread: expected two or more curves, all with the same steps as the compared ones", file=sys.stderr)
        return 2
    spread = max(math.sqrt(mean([relative(other[s], start[s]) ** 2 for other in others])) for s in steps)
    bound = max(FLOOR, SPREADS * spread)
    found, step = max((relative(curve[s], reference[s]), s) for s in steps)
    good = found <= bound and math.isfinite(bound)
    print(f"{'within' if good else 'BEYOND'} {bound:.3g}, as measured, over {len(steps)} steps: "
          f"largest relative difference {found:.3g} at step {step}; the spread is {spread:.3g}")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curve")
    parser.add_argument("reference")
    parser.add_argument("--tolerance", type=float, default=0.01, help="largest relative difference allowed")
    parser.add_argument("--window", type=int, default=10, help="number of steps in the window of a mean")
    parser.add_argument("--means", action="store_true",
                        help="apply the tolerance to the means over windows: single steps of bf16 runs differ more")
    parser.add_argument("--prefix", action="store_true", help="allow one curve to be a prefix of the other")
    parser.add_argument("--spread", nargs="+", metavar="CURVE",
                        help="measure the tolerance from these curves instead of using --tolerance")
    args = parser.parse_args()

    curve, reference = read(args.curve), read(args.reference)
    steps = sorted(curve.keys() & reference.keys())
    if not steps or not (args.prefix or curve.keys() == reference.keys()):
        print(f"{args.curve} has {len(curve)} steps, {args.reference} {len(reference)}, {len(steps)} in common",
              file=sys.stderr)
        return 2
    if args.spread:
        return compare_with_spread(args, curve, reference, steps)

    by_step, worst = max((relative(curve[s], reference[s]), s) for s in steps)
    windows = [steps[i : i + args.window] for i in range(0, len(steps), args.window)]
    by_window, first = max((relative(mean([curve[s] for s in w]), mean([reference[s] for s in w])), w[0])
                           for w in windows)
    good = (by_window if args.means else by_step) <= args.tolerance
    print(f"{'within' if good else 'BEYOND'} {args.tolerance:g} over {len(steps)} steps: largest relative difference "
          f"{by_step:.3g} at step {worst}; of means over {args.window} steps {by_window:.3g} from step {first}; "
          f"last losses {curve[steps[-1]]:.6g} and {reference[steps[-1]]:.6g}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
