"""The low-rank mode of `fcaffe compress`: replaces layers by two with fewer multiply-adds, and prints a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from fcaffe import log
from fcaffe.cli.table import print_table
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.model_files import read_model, write_model
from fcaffe.proto import read_net, write_text
from fcaffe.tools.low_rank import low_rank

OPTIONS = [
    click.option(
        "--rank", "ranks", multiple=True, metavar="LAYER=N", help="A layer and its rank; no other is changed."
    ),
    click.option(
        "--energy",
        type=float,
        metavar="SHARE",
        help="Without --rank: the share of the squares of singular values that stays in each layer (0.95).",
    ),
]


def factor(files: Sequence[str], ranks: dict[str, int], energy: float, solver: Any, engine: Engine | None) -> None:
    """Write the net and the model of low rank. With an engine, a solver's test nets score the model before and after.

    Args:
        files: net, weights, new net, new weights.
        ranks: by layer; see `fcaffe.tools.low_rank`.
        energy: the share of the squared singular values to keep, where there are no ranks.
        solver: a SolverParameter, or None.
        engine: of the test nets, or None.
    """
    net, weights, new_net, new_weights = files
    with log.quiet():
        old = read_model(weights)
        param, model, done = low_rank(read_net(net), old, ranks, energy)
    scores = []
    if engine is not None:
        from fcaffe.tools.scoring import model_scores  # which loads all layers

        chosen = {one.layer: one.rank for one in done}

        def factored(test_net: Any) -> Any:
            here = {layer.name for layer in test_net.layer}
            own = {name: rank for name, rank in chosen.items() if name in here}
            return low_rank(test_net, old, own, energy)[0] if own else test_net

        scores = [model_scores(solver, old, engine), model_scores(solver, model, engine, factored)]
    write_text(new_net, param)
    write_model(new_weights, model)
    rows = [(one.layer, str(one.rank), str(one.full), f"{100 * one.error:.2f} %") for one in done]
    if rows:
        print_table(new_net, ("layer", "rank", "of", "error of weights"), rows, numbers_from=1)
    if scores:
        pairs = zip(*scores, strict=True)
        shown = [(name, f"{before:.4f}", f"{after:.4f}") for (name, before), (_, after) in pairs]
        print_table("Test nets", ("output", "before", "after"), shown, numbers_from=1)
    print(f"{new_net}: {len(done)} layers were factored; fcaffe summary shows the multiply-adds")


def parse_rank(word: str) -> tuple[str, int]:
    """The layer and rank of LAYER=N. Raises UsageError."""
    layer, equals, number = word.rpartition("=")
    if not equals or not number.isdecimal():
        raise UsageError(f"--rank takes LAYER=N, such as fc6=256, not '{word}'")
    return layer, int(number)
