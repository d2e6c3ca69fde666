"""`fcaffe compress`: writes inner products and convolutions in two steps with fewer multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fcaffe import log
from fcaffe.cli.flags import common_flags
from fcaffe.cli.table import print_table
from fcaffe.cli.usage import Command
from fcaffe.errors import UsageError
from fcaffe.net.model_files import read_model, write_model
from fcaffe.output_files import remove_leftovers
from fcaffe.proto import read_net, write_text
from fcaffe.tools.low_rank import low_rank


@click.command(
    "compress",
    cls=Command,
    example="compress deploy.prototxt net.caffemodel small.prototxt small.caffemodel --rank fc6=256 --rank fc7=128",
    help="Write inner products and convolutions of the net NET as two layers of low rank each, by the singular values "
    "of the weights in the model WEIGHTS, and what comes out as NEW_NET and NEW_WEIGHTS. Outputs change by what the "
    "dropped singular values were; fcaffe train --weights NEW_WEIGHTS makes up for it.",
)
@click.argument("net", required=False, metavar="NET")
@click.argument("weights", required=False, metavar="WEIGHTS")
@click.argument("new_net", required=False, metavar="NEW_NET")
@click.argument("new_weights", required=False, metavar="NEW_WEIGHTS")
@click.option("--rank", "ranks", multiple=True, metavar="LAYER=N", help="A layer and its rank; no other is changed.")
@click.option(
    "--energy",
    default=0.95,
    metavar="SHARE",
    help="Without --rank: the share of the squares of singular values that stays in each layer (0.95).",
)
@common_flags
def compress(
    net: str | None,
    weights: str | None,
    new_net: str | None,
    new_weights: str | None,
    ranks: Sequence[str],
    energy: float,
) -> int:
    if not net or not weights or not new_net or not new_weights:
        raise UsageError("compress needs four files: compress NET WEIGHTS NEW_NET NEW_WEIGHTS")
    if not 0 < energy <= 1:
        raise UsageError(f"--energy is a share above 0 and up to 1, not {energy:g}")
    with log.quiet():
        param, model, done = low_rank(read_net(net), read_model(weights), dict(map(_rank, ranks)), energy)
    for path in (new_net, new_weights):
        remove_leftovers(path)
    write_text(new_net, param)
    write_model(new_weights, model)
    rows = [(one.layer, str(one.rank), str(one.full), f"{100 * one.error:.2f} %") for one in done]
    if rows:
        print_table(new_net, ("layer", "rank", "of", "error of weights"), rows, ("layer",), numbers_from=1)
    print(f"{new_net}: {len(done)} layers are two now; fcaffe summary shows the multiply-adds")
    return 0


def _rank(word: str) -> tuple[str, int]:
    layer, equals, number = word.rpartition("=")
    if not equals or not number.isdecimal():
        raise UsageError(f"--rank takes LAYER=N, such as fc6=256, not '{word}'")
    return layer, int(number)
