"""`fcaffe convert`: writes a model, solver state, net, solver or mean in another form."""

from __future__ import annotations

import click

from fcaffe.cli.flags import common_flags
from fcaffe.cli.usage import Command
from fcaffe.errors import UsageError
from fcaffe.tools.convert import convert as convert_file


@click.command(
    "convert",
    cls=Command,
    example="convert net.caffemodel net.npz",
    help="Write what is in the file IN to the file OUT, in the current notation and in the form that OUT's name ends "
    "in: a model as .caffemodel, .h5 or .npz (or its net as .prototxt), a solver state as .solverstate or .h5, a net "
    "or solver as .prototxt, a mean as .binaryproto or .npy. If IN is a database, its mean image is computed.",
)
@click.argument("source", required=False, metavar="IN")
@click.argument("target", required=False, metavar="OUT")
@click.option(
    "--net", default="", metavar="FILE", help="The net of a model in HDF5 that Caffe wrote: it says the rest."
)
@click.option(
    "--to",
    type=click.Choice(["bvlc", "nvidia"]),
    default="bvlc",
    help="Whose form the blobs of a .caffemodel have (bvlc, which NVIDIA's fork reads too).",
)
@common_flags
def convert(source: str | None, target: str | None, net: str, to: str) -> int:
    if not source or not target:
        raise UsageError("convert needs two files: convert IN OUT")
    noun = convert_file(source, target, net or None, nvidia=to == "nvidia")
    print(f"{target}: {noun} from {source}")
    return 0
