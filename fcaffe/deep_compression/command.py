"""`fcaffe compress`: Deep Compression into a .dcmodel, or layers of low rank (fcaffe/cli/low_rank.py)."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fcaffe import log
from fcaffe.cli import low_rank
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import log_flags, with_options
from fcaffe.cli.gpus import first_gpu
from fcaffe.cli.usage import Command
from fcaffe.deep_compression.mode import DeepFlags, compress_deeply, deep_flags
from fcaffe.errors import UsageError
from fcaffe.proto import read_solver


@click.command(
    "compress",
    cls=Command,
    example="compress lenet.caffemodel lenet.dcmodel --solver lenet_solver.prototxt --density 0.33,ip1=0.08 --bits 5",
    help="With two files: write the model WEIGHTS as OUT.dcmodel, by Deep Compression: small weights become 0, others "
    "share few values, and Huffman codes store them. With --solver the net trains between the steps. With four files: "
    "replace inner products and convolutions of the net NET by two layers of low rank each, by the singular values of "
    "the weights in the model WEIGHTS, and write NEW_NET and NEW_WEIGHTS. Outputs change with the dropped singular "
    "values; fcaffe train --weights NEW_WEIGHTS compensates for it.",
)
@click.argument("files", nargs=-1, metavar="WEIGHTS OUT.dcmodel | NET WEIGHTS NEW_NET NEW_WEIGHTS")
@click.option("--solver", "solver_path", default="", metavar="FILE", help="Test by the test nets of this solver.")
@click.option("--gpu", default="", metavar="ID", help="With --solver: the GPU to use (the CPU).")
@with_options(low_rank.OPTIONS, "Flags for layers of low rank")
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
        low_rank.factor(
            files, dict(map(low_rank.parse_rank, ranks)), 0.95 if energy is None else energy, solver, engine
        )
    return 0
