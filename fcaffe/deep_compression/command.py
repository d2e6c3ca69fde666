"""`fcaffe compress`: Deep Compression into a .dcmodel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from fcaffe import log
from fcaffe.cli.engine import GpuFlags, gpu_flags
from fcaffe.cli.flags import OWN, command, flag, with_flags
from fcaffe.cli.summary import rates
from fcaffe.cli.table import print_table, say
from fcaffe.deep_compression import dcmodel, pruning
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.model_files import Model, read_model
from fcaffe.onnx.convert import target_kind
from fcaffe.output_files import check_output
from fcaffe.proto import read_solver

_DEFAULT = "a tenth of max_iter"


@dataclass(frozen=True)
class DeepFlags:
    density: Sequence[str] = flag(
        "[LAYER=]SHARE,...",
        "Share of the weights that are not made 0 (convolutions 0.33, inner products 0.06).",
        default=(),
        multiple=True,
    )
    quality: Sequence[str] = flag(
        "[LAYER=]N,...",
        "Instead of a density: set weights to 0 that are below N standard deviations of their layer's.",
        default=(),
        multiple=True,
    )
    bits: Sequence[str] = flag(
        "[LAYER=]N,...",
        "Let the weights of a layer have 2^N values that are not 0 (convolutions 6, inner products 5).",
        default=(),
        multiple=True,
    )
    rounds: int = flag("N", "Steps in which densities fall (2).", default=2, type=click.IntRange(min=1))
    retrain: int | None = flag(
        "N",
        f"With --solver: iterations after each of these steps ({_DEFAULT}).",
        default=None,
        type=click.IntRange(min=0),
    )
    tune: int | None = flag(
        "N",
        f"With --solver: iterations with weights that share values ({_DEFAULT}).",
        default=None,
        type=click.IntRange(min=0),
    )
    rate: float | None = flag(
        "R", "With --solver: the learning rate (the solver's, half-way to max_iter).", default=None, type=float
    )


@command(
    example="compress lenet.caffemodel lenet.dcmodel --solver lenet_solver.prototxt --density 0.33,ip1=0.08 --bits 5",
    help="Write the model WEIGHTS as OUT.dcmodel, by Deep Compression: small weights become 0, others share few "
    "values, and Huffman codes store them. With --solver the net trains between the steps.",
)
@click.argument("source", metavar="WEIGHTS")
@click.argument("target", metavar="OUT.dcmodel")
@click.option("--solver", "solver_path", default="", metavar="FILE", help="Train and test by this solver.")
@with_flags("flags", DeepFlags, OWN)
@gpu_flags
def compress(source: str, target: str, solver_path: str, flags: DeepFlags, engines: GpuFlags) -> int:
    solver, engine = None, None
    if solver_path:
        with log.quiet():
            solver = read_solver(solver_path)
        engine = engines.chosen()
    compress_deeply(source, target, flags, solver, engine)
    return 0


def compress_deeply(source: str, target: str, flags: DeepFlags, solver: Any, engine: Engine | None) -> None:
    """Compress a model file into a .dcmodel, and print tables of sizes and scores.

    With a SolverParameter, the engine trains the net between the steps, and tests it after each.
    """
    if not target.endswith(".dcmodel"):
        raise UsageError(f"compress writes a .dcmodel, not {target}")
    check_output(target, target_kind(target), source)
    if solver is None and (flags.retrain or flags.tune or flags.rate is not None):
        raise UsageError("--retrain, --tune and --rate are for --solver, by which the net trains on")
    with log.quiet():
        model = read_model(source)
    wanted = pruning.aims(model, *_numbers_of(flags))
    training = None
    with contextlib.ExitStack() as stack:
        if solver is not None:
            assert engine is not None
            # The solver's rate half-way to max_iter: its first, larger ones would undo the training before.
            first_half = [rate for iteration, rate in rates(solver) if iteration <= solver.max_iter // 2]
            half_way = first_half[-1] if first_half else float(solver.base_lr)
            training = pruning.Retraining(solver, engine, half_way if flags.rate is None else flags.rate)
            stack.callback(training.close)
            training.test(model, "as it was")
        for step in range(flags.rounds):
            model = pruning.pruned(model, wanted, (step + 1) / flags.rounds)
            if training is not None:
                what = f"pruned, step {step + 1} of {flags.rounds}" if flags.rounds > 1 else "pruned"
                model = training.step(model, what, flags.retrain, pruning.Masked, wanted)
        model = pruning.shared(model, wanted)
        if training is not None:
            model = training.step(model, "with shared weights", flags.tune, pruning.Shared, wanted)
    sizes = dcmodel.write(target, model)
    _print_sizes(source, target, model, wanted, sizes)
    if training is not None:
        rows = [(what, *(f"{value:.4f}" for _, value in scores)) for what, scores in training.scores]
        print_table("Test nets", ("", *(name for name, _ in training.scores[0][1])), rows, numbers_from=1)
    before, after = os.path.getsize(source), os.path.getsize(target)
    say(f"{target}: {after} bytes, {before / after:.1f} times fewer than the {before} of {source}")


def _print_sizes(
    source: str, target: str, model: Model, wanted: dict[str, pruning.Aim], sizes: dict[tuple[str, int], int]
) -> None:
    before, after = os.path.getsize(source), os.path.getsize(target)
    rows: list[tuple[Any, ...]] = []
    for name, size, nonzero, kinds in pruning.weight_counts(model, wanted):
        own = sizes[name, 0]
        bits = f"{8 * own / nonzero:.1f}" if nonzero else "0"
        rows.append((name, f"{100 * nonzero / max(size, 1):.1f} %", str(kinds), bits, 4 * size, own))
    left = [whole - sum(row[column] for row in rows) for column, whole in ((4, before), (5, after))]
    rows += [("all else", "", "", "", *left), ("the file", "", "", "", before, after)]
    columns = ("weights of", "not 0", "values", "bits each", "bytes before", "after", "times fewer")
    shown = [(*texts, str(old), str(new), f"{old / max(new, 1):.1f}") for *texts, old, new in rows]
    print_table(target, columns, shown, numbers_from=1)


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
        if value not in range(1, pruning.MOST_BITS + 1):
            raise UsageError(f"--bits is a whole number from 1 to {pruning.MOST_BITS}, not {value:g}")
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
