"""The two-file mode of `fcaffe compress`: Deep Compression into a .dcmodel, and a table of the sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from fcaffe import log
from fcaffe.cli.flags import with_flags
from fcaffe.cli.table import print_table
from fcaffe.deep_compression import dcmodel
from fcaffe.deep_compression.pruning import MOST_BITS, Aim, aims, pruned, shared, weight_counts
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.model_files import Model, read_model
from fcaffe.tools.solver_fields import rates

_DEFAULT = "a tenth of max_iter"


@dataclass(frozen=True)
class DeepFlags:
    density: Sequence[str]
    quality: Sequence[str]
    bits: Sequence[str]
    rounds: int
    retrain: int | None
    tune: int | None
    rate: float | None


OPTIONS = [
    click.option(
        "--density",
        multiple=True,
        metavar="[LAYER=]SHARE,...",
        help="Share of the weights that are not made 0 (convolutions 0.33, inner products 0.06).",
    ),
    click.option(
        "--quality",
        multiple=True,
        metavar="[LAYER=]N,...",
        help="Instead of a density: set weights to 0 that are below N standard deviations of their layer's.",
    ),
    click.option(
        "--bits",
        multiple=True,
        metavar="[LAYER=]N,...",
        help="Let the weights of a layer have 2^N values that are not 0 (convolutions 6, inner products 5).",
    ),
    click.option(
        "--rounds", type=click.IntRange(min=1), default=2, metavar="N", help="Steps in which densities fall (2)."
    ),
    click.option(
        "--retrain",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"With --solver: iterations after each of these steps ({_DEFAULT}).",
    ),
    click.option(
        "--tune",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"With --solver: iterations with weights that share values ({_DEFAULT}).",
    ),
    click.option(
        "--rate", type=float, metavar="R", help="With --solver: the learning rate (the solver's, half-way to max_iter)."
    ),
]
deep_flags = with_flags("deep", DeepFlags, OPTIONS, "Flags for .dcmodel files")


def compress_deeply(source: str, target: str, flags: DeepFlags, solver: Any, engine: Engine | None) -> None:
    """Compress a model file into a .dcmodel, and print tables of sizes and scores.

    With a SolverParameter, the engine trains the net between the steps, and tests it after each.
    """
    if not target.endswith(".dcmodel"):
        raise UsageError(
            f"with two files, compress writes a .dcmodel, not {target}; for layers of low rank give four: "
            "compress NET WEIGHTS NEW_NET NEW_WEIGHTS"
        )
    if solver is None and (flags.retrain or flags.tune or flags.rate is not None):
        raise UsageError("--retrain, --tune and --rate are for --solver, by which the net trains on")
    with log.quiet():
        model = read_model(source)
    wanted = aims(model, *_numbers_of(flags))
    rows: list[tuple[str, list[tuple[str, float]]]] = []
    if solver is None:
        for step in range(flags.rounds):
            model = pruned(model, wanted, (step + 1) / flags.rounds)
        model = shared(model, wanted)
    else:
        assert engine is not None
        model = _with_training(model, wanted, flags, solver, engine, rows)
    sizes = dcmodel.write(target, model)
    _print_sizes(source, target, model, wanted, sizes)
    if rows:
        names = [name for name, _ in rows[0][1]]
        print_table("Test nets", ("", *names), [(what, *(f"{v:.4f}" for _, v in found)) for what, found in rows], 1)
    before, after = os.path.getsize(source), os.path.getsize(target)
    print(f"{target}: {after} bytes, {before / after:.1f} times fewer than the {before} of {source}")


def _with_training(
    model: Model,
    wanted: dict[str, Aim],
    flags: DeepFlags,
    solver: Any,
    engine: Engine,
    rows: list[tuple[str, list[tuple[str, float]]]],
) -> Model:
    """Compress with training between the steps. The scores after each step are appended to `rows`."""
    from fcaffe.deep_compression.retraining import Masked, Retraining, Shared
    from fcaffe.tools.scoring import model_scores  # which loads all layers

    def tell(what: str) -> None:
        scores = model_scores(solver, model, engine)
        rows.append((what, scores))
        log.info(f"{what}: {', '.join(f'{name} = {value:.4f}' for name, value in scores)}")

    def iterations(given: int | None) -> int:
        return max(1, solver.max_iter // 10) if given is None else given

    tell("as it was")
    training = Retraining(solver, engine, _rate_half_way(solver) if flags.rate is None else flags.rate)
    try:
        for step in range(flags.rounds):
            model = pruned(model, wanted, (step + 1) / flags.rounds)
            tell(f"pruned, step {step + 1} of {flags.rounds}" if flags.rounds > 1 else "pruned")
            if count := iterations(flags.retrain):
                model = training.train(model, count, Masked, wanted)
                tell(f"after {count} iterations")
        model = shared(model, wanted)
        tell("with shared weights")
        if count := iterations(flags.tune):
            model = training.train(model, count, Shared, wanted)
            tell(f"after {count} iterations")
    finally:
        training.close()
    return model


def _rate_half_way(solver: Any) -> float:
    """The solver's learning rate half-way to max_iter: its first, larger rates would undo the training before."""
    first_half = [rate for iteration, rate in rates(solver) if iteration <= solver.max_iter // 2]
    return first_half[-1] if first_half else float(solver.base_lr)


def _print_sizes(source: str, target: str, model: Model, wanted: dict[str, Aim], sizes: list[dcmodel.Size]) -> None:
    counts = {name: (size, nonzero, kinds) for name, size, nonzero, kinds in weight_counts(model, wanted)}
    taken = {(one.layer, one.blob): one.nbytes for one in sizes}
    rows, left = [], [os.path.getsize(source), os.path.getsize(target)]

    def add(name: str, density: str, kinds: str, bits: str, before: int, after: int) -> None:
        rows.append((name, density, kinds, bits, str(before), str(after), f"{before / max(after, 1):.1f}"))

    for name, (size, nonzero, kinds) in counts.items():
        after = taken[name, 0]
        bits = f"{8 * after / nonzero:.1f}" if nonzero else "0"
        add(name, f"{100 * nonzero / max(size, 1):.1f} %", str(kinds), bits, 4 * size, after)
        left = [left[0] - 4 * size, left[1] - after]
    add("all else", "", "", "", left[0], left[1])
    add("the file", "", "", "", os.path.getsize(source), os.path.getsize(target))
    columns = ("weights of", "not 0", "values", "bits each", "bytes before", "after", "times fewer")
    print_table(target, columns, rows, numbers_from=1)


def _numbers_of(flags: DeepFlags) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    densities, qualities, bits = (
        _by_layer(f"--{name}", getattr(flags, name)) for name in ("density", "quality", "bits")
    )
    for layer, value in densities.items():
        if not 0 <= value <= 1:
            raise UsageError(f"--density is a share from 0 to 1, not {value:g}{f' for {layer}' * bool(layer)}")
    for value in qualities.values():
        if value < 0:
            raise UsageError(f"--quality is 0 or more standard deviations, not {value:g}")
    for value in bits.values():
        if value not in range(1, MOST_BITS + 1):
            raise UsageError(f"--bits is a whole number from 1 to {MOST_BITS}, not {value:g}")
    if both := sorted(set(densities) & set(qualities)):
        raise UsageError(f"--density and --quality are both for {both[0] or 'all layers'}: give one of them")
    return densities, qualities, bits


def _by_layer(flag: str, words: Sequence[str]) -> dict[str, float]:
    """The numbers of a flag by layer. The key "" has the number for all other layers."""
    found: dict[str, float] = {}
    for word in ",".join(words).split(","):
        layer, equals, number = word.rpartition("=")
        if not word:
            continue
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if value != value or (equals and not layer):
            raise UsageError(f"{flag} takes a number, or LAYER=NUMBER, such as ip1=0.5, not '{word}'")
        found[layer] = value
    return found
