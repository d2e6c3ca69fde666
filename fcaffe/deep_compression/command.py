"""`fcaffe compress`: Deep Compression into a .dcmodel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from fcaffe import log
from fcaffe.cli.engine import GpuFlags, gpu_flags
from fcaffe.cli.flags import OWN, command, flag, with_flags
from fcaffe.cli.summary import rates
from fcaffe.cli.table import say
from fcaffe.deep_compression import pruning
from fcaffe.errors import UsageError
from fcaffe.model_files import read_model, write_model
from fcaffe.onnx.convert import target_kind
from fcaffe.output_files import check_output
from fcaffe.proto import read_solver

ROUNDS = 2  # steps in which the densities fall


@dataclass(frozen=True)
class DeepFlags:
    solver: str = flag(
        "FILE",
        "Train the net of this solver for a tenth of max_iter after each step, at the rate that it has half-way to "
        "max_iter, and test it by its test nets.",
    )
    density: Sequence[str] = flag(
        "[LAYER=]SHARE,...",
        "Share of the weights that are not made 0 (convolutions 0.33, inner products 0.06).",
        default=(),
        multiple=True,
    )
    bits: Sequence[str] = flag(
        "[LAYER=]N,...",
        "Let the weights of a layer have 2^N values that are not 0 (convolutions 6, inner products 5).",
        default=(),
        multiple=True,
    )


@command(
    example="compress lenet.caffemodel lenet.dcmodel --solver lenet_solver.prototxt --density 0.33,ip1=0.08 --bits 5",
    help="Write the model WEIGHTS as OUT.dcmodel, by Deep Compression: small weights become 0, others share few "
    "values, and entropy codes store them. With --solver the net trains between the steps.",
)
@click.argument("weights")
@click.argument("out", metavar="OUT.dcmodel")
@with_flags("flags", DeepFlags, OWN)
@gpu_flags
def compress(weights: str, out: str, flags: DeepFlags, engines: GpuFlags) -> int:
    if not out.endswith(".dcmodel"):
        raise UsageError(f"compress writes a .dcmodel, not {out}")
    check_output(out, target_kind(out), weights)
    densities = _by_layer("--density", flags.density, "a share from 0 to 1", lambda share: 0 <= share <= 1)
    bits = _by_layer(
        "--bits",
        flags.bits,
        f"a whole number from 1 to {pruning.MOST_BITS}",
        lambda number: number in range(1, pruning.MOST_BITS + 1),
    )
    with log.quiet():
        model = read_model(weights)
    wanted = pruning.aims(model, densities, bits)
    training = None
    with contextlib.ExitStack() as stack:
        if flags.solver:
            with log.quiet():
                solver = read_solver(flags.solver)
            # Its first, larger rates would undo the training before.
            first_half = [rate for iteration, rate in rates(solver) if iteration <= solver.max_iter // 2]
            half_way = first_half[-1] if first_half else float(solver.base_lr)
            training = pruning.Retraining(solver, engines.chosen(), half_way)
            stack.callback(training.close)
            training.test(model, "as it was")
        for step in range(1, ROUNDS + 1):
            model = pruning.pruned(model, wanted, step / ROUNDS)
            if training is not None:
                model = training.step(model, f"pruned, step {step} of {ROUNDS}", pruning.Masked, wanted)
        model = pruning.shared(model, wanted)
        if training is not None:
            model = training.step(model, "with shared weights", pruning.Shared, wanted)
    write_model(out, model)
    before, after = os.path.getsize(weights), os.path.getsize(out)
    say(f"{out}: {after} bytes, {before / after:.1f} times fewer than the {before} of {weights}")
    return 0


def _by_layer(flag: str, words: Sequence[str], wanted: str, fits: Callable[[float], bool]) -> dict[str, float]:
    """The numbers of a flag by layer. The key "" has the number for all other layers."""
    found: dict[str, float] = {}
    for word in filter(None, ",".join(words).split(",")):
        layer, equals, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not fits(value) or (equals and not layer):
            raise UsageError(f"{flag} takes {wanted}, for all layers or as LAYER=NUMBER for one, not '{word}'")
        found[layer] = value
    return found
