#!/usr/bin/env python3
"""The gain of each rule of `fcaffe.net.run.rewrite`: steps without the rule against steps with all rules.

  scripts/bench/rules.py                                         # all nets and rules, for at most 8 minutes
  scripts/bench/rules.py --nets squeezenet --rules ConvolutionReLU --batches 16 --steps inference

For each net the script builds one copy with all rules, and one without each rule that changes the net's program. Both
run in this process, in interleaved slices of steps. Prints a Markdown table of ratios: the time without the rule over
the time with it, so above 1 the rule gains. The first number compares the median steps, the one in parentheses the
fastest steps. "-": the rule changes nothing here; an empty cell: not measured.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

from competitors import Slices, fastest_step, median_step, take_slices
from cpu_racers import fcaffe_racer
from nets import NETS

import fcaffe.layers  # noqa: F401 - registers the rules
from fcaffe.net.run import rewrite

ROUNDS, SECONDS = (2, 5), 8  # the fewest and the most rounds; about as many as take these seconds
WARM = 4  # steps in which programs are rewritten and recorded
RULES = {getattr(getattr(rule, "keywords", {}).get("kind", rule), "__name__", ""): rule for rule in rewrite.rules}


class Variant:
    """A net that is built with some of the rules, as `take_slices` runs it. `applied` are the rules that change it."""

    is_racing = True

    def __init__(self, net: str, batch: int, training: bool, without: str = "") -> None:
        self.applied: set[str] = set()
        self.slices: list[list[float]] = []
        rewrite.rules = [self._watched(name, rule) for name, rule in RULES.items() if name != without]
        self.racer = fcaffe_racer(net, batch, training, "fp32")
        self.step_seconds = min(self.steps(WARM))

    def _watched(self, name: str, rule: rewrite.Rule) -> rewrite.Rule:
        def rewritten(nodes: list[Any], want: rewrite.Want) -> list[Any]:
            result = rule(nodes, want)
            before, after = ([(node.layer, node.bottoms, node.tops) for node in some] for some in (nodes, result))
            if before != after:
                self.applied.add(name)
            return result

        return rewritten

    def steps(self, count: int, limit: float = 0) -> list[float]:
        return self.racer.timed(count)["each"]

    def close(self) -> None:
        del self.racer
        gc.collect()  # a net is part of reference cycles


def gain(with_all: Variant, lacking: Variant, seconds: float) -> str:
    """The ratio of the median steps and, in parentheses, of the fastest ones. `seconds`: of a slice."""
    rounds = max(ROUNDS[0], min(ROUNDS[1], int(SECONDS / (2 * max(with_all.step_seconds, seconds)))))
    with_all.slices = []
    take_slices([with_all, lacking], Slices(rounds, seconds))
    median, fastest = (find(lacking.slices) / find(with_all.slices) for find in (median_step, fastest_step))
    return f"{median:.2f} ({fastest:.2f})"


def measure(words: argparse.Namespace) -> Iterator[tuple[str, str, str, str]]:
    """Net, rule, column and text of each cell, until the time is up."""
    end = time.monotonic() + 60 * words.minutes
    cells = [(net, step, batch) for net in words.nets for step in words.steps for batch in words.batches]
    while cells and time.monotonic() < end:
        net, step, batch = cells.pop(0)
        with_all = Variant(net, int(batch), step == "training")
        for rule in (rule for rule in RULES if rule in words.rules):
            text = "-" if rule not in with_all.applied else ""
            if not text and time.monotonic() < end:
                lacking = Variant(net, int(batch), step == "training", without=rule)
                text = gain(with_all, lacking, words.slice)
                lacking.close()
            yield net, rule, f"{step} {batch}", text
        with_all.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    nets = sorted(NETS, key="vgg16".__eq__)  # the slowest one last
    known = {"nets": nets, "rules": list(RULES), "steps": ["training", "inference"]}
    for name, choices in {**known, "batches": ["1", "16"]}.items():
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=choices, help=",".join(choices))
    parser.add_argument("--slice", type=float, default=0.25, help="seconds of a slice (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=8, help="stop after about this time (default: %(default)s)")
    words = parser.parse_args()
    for name, choices in known.items():
        if unknown := set(getattr(words, name)) - set(choices):
            parser.error(f"--{name}: no {', '.join(sorted(unknown))}; there are {', '.join(choices)}")
    columns = [f"{step} {batch}" for step in words.steps for batch in words.batches]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    try:
        for net, rule, column, text in measure(words):
            rows.setdefault((net, rule), {})[column] = text
            if text not in ("", "-"):
                print(net, column, rule, text, file=sys.stderr, flush=True)
    finally:
        print(f"| net | rule | {' | '.join(columns)} |\n{'|---' * (len(columns) + 2)}|")
        for (net, rule), cells in rows.items():
            if set(cells.values()) != {"-"}:
                print(f"| {net} | {rule} | {' | '.join(cells.get(column, '') for column in columns)} |")


if __name__ == "__main__":
    main()
