"""`fcaffe compress`: Deep Compression into a .dcmodel, or layers in two steps with fewer multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from fcaffe import log
from fcaffe.cli.deep_compression import DeepFlags, compress_deeply, deep_flags
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import log_flags, with_options
from fcaffe.cli.gpus import first_gpu
from fcaffe.cli.table import print_table
from fcaffe.cli.usage import Command
from fcaffe.engines import Engine
from fcaffe.errors import UsageError
from fcaffe.net.model_files import read_model, write_model
from fcaffe.output_files import remove_leftovers
from fcaffe.proto import read_net, read_solver, write_text
from fcaffe.tools.low_rank import low_rank

_LOW_RANK = [
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


@click.command(
    "compress",
    cls=Command,
    example="compress lenet.caffemodel lenet.dcmodel --solver lenet_solver.prototxt --density 0.33,ip1=0.08 --bits 5",
    help="With two files: write the model WEIGHTS as OUT.dcmodel, by Deep Compression: small weights become 0, others "
    "share few values, and Huffman codes tell where and which they are. With --solver the net trains on in between. "
    "With four: write inner products and convolutions of the net NET as two layers of low rank each, by the singular "
    "values of the weights in the model WEIGHTS, and what comes out as NEW_NET and NEW_WEIGHTS. Outputs change by what "
    "the dropped singular values were; fcaffe train --weights NEW_WEIGHTS makes up for it.",
)
@click.argument("files", nargs=-1, metavar="WEIGHTS OUT.dcmodel | NET WEIGHTS NEW_NET NEW_WEIGHTS")
@click.option("--solver", "solver_path", default="", metavar="FILE", help="Test by the test nets of this solver.")
@click.option("--gpu", default="", metavar="ID", help="With --solver: the GPU to use (the CPU).")
@with_options(_LOW_RANK, "Flags for layers of low rank")
@deep_flags
@engine_flags
@log_flags
def compress(
    files: Sequence[str],
    solver_path: str,
    gpu: str,
    ranks: Sequence[str],
    energy: float | None,
    deep: DeepFlags,
    engines: EngineFlags,
) -> int:
    if len(files) not in (2, 4):
        raise UsageError("compress needs two files, WEIGHTS OUT.dcmodel, or four, NET WEIGHTS NEW_NET NEW_WEIGHTS")
    if len(files) == 2 and (ranks or energy is not None):
        raise UsageError("--rank and --energy are for layers of low rank: compress NET WEIGHTS NEW_NET NEW_WEIGHTS")
    if len(files) == 4 and deep != DeepFlags((), (), (), 2, None, None, None):
        raise UsageError("flags of densities, bits and training are for two files: compress WEIGHTS OUT.dcmodel")
    if energy is not None and not 0 < energy <= 1:
        raise UsageError(f"--energy is a share above 0 and up to 1, not {energy:g}")
    solver, engine = None, None
    if solver_path:
        with log.quiet():
            solver = read_solver(solver_path)
        device = first_gpu(gpu)
        engine = engines.create(device and device[0])
    if len(files) == 2:
        compress_deeply(files[0], files[1], deep, solver, engine)
    else:
        _factor(files, dict(map(_rank, ranks)), 0.95 if energy is None else energy, solver, engine)
    return 0


def _factor(files: Sequence[str], ranks: dict[str, int], energy: float, solver: Any, engine: Engine | None) -> None:
    net, weights, new_net, new_weights = files
    with log.quiet():
        old = read_model(weights)
        param, model, done = low_rank(read_net(net), old, ranks, energy)
    scores = []
    if engine is not None:
        from fcaffe.tools.model_scores import model_scores  # which loads all layers

        chosen = {one.layer: one.rank for one in done}

        def factored(test_net: Any) -> Any:
            here = {layer.name for layer in test_net.layer}
            own = {name: rank for name, rank in chosen.items() if name in here}
            return low_rank(test_net, old, own, energy)[0] if own else test_net

        scores = [model_scores(solver, old, engine), model_scores(solver, model, engine, factored)]
    for path in (new_net, new_weights):
        remove_leftovers(path)
    write_text(new_net, param)
    write_model(new_weights, model)
    rows = [(one.layer, str(one.rank), str(one.full), f"{100 * one.error:.2f} %") for one in done]
    if rows:
        print_table(new_net, ("layer", "rank", "of", "error of weights"), rows, ("layer",), numbers_from=1)
    if scores:
        pairs = zip(*scores, strict=True)
        shown = [(name, f"{before:.4f}", f"{after:.4f}") for (name, before), (_, after) in pairs]
        print_table("Test nets", ("output", "before", "after"), shown, ("output",), numbers_from=1)
    print(f"{new_net}: {len(done)} layers are two now; fcaffe summary shows the multiply-adds")


def _rank(word: str) -> tuple[str, int]:
    layer, equals, number = word.rpartition("=")
    if not equals or not number.isdecimal():
        raise UsageError(f"--rank takes LAYER=N, such as fc6=256, not '{word}'")
    return layer, int(number)
