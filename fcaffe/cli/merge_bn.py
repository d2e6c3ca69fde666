"""`fcaffe merge-bn`: folds BatchNorm, Scale and Bias into the weights before them."""

from __future__ import annotations

import click

from fcaffe import log
from fcaffe.cli.flags import command
from fcaffe.model_files import read_model, write_model
from fcaffe.output_files import check_output
from fcaffe.proto import read_net, write_text
from fcaffe.proto.text import PROTOTXT
from fcaffe.tools.convert import target_kind
from fcaffe.tools.merge_bn import merge_bn as merge


@command(
    example="merge-bn deploy.prototxt net.caffemodel merged.prototxt merged.caffemodel",
    help="Fold each BatchNorm, Scale and Bias of the net NET into the convolution or inner product before it, by the "
    "weights of the model WEIGHTS, and write what is left, in phase TEST, as NEW_NET and NEW_WEIGHTS. Without "
    "such weights, successive ones become one Scale. The outputs stay the same, to the rounding of float32.",
)
@click.argument("net", metavar="NET")
@click.argument("weights", metavar="WEIGHTS")
@click.argument("new_net", metavar="NEW_NET")
@click.argument("new_weights", metavar="NEW_WEIGHTS")
def merge_bn(net: str, weights: str, new_net: str, new_weights: str) -> int:
    check_output(new_net, PROTOTXT, net, weights, new_weights)
    check_output(new_weights, target_kind(new_weights), net, weights)
    with log.quiet():
        merged = merge(read_net(net), read_model(weights))
    write_text(new_net, merged.net)
    write_model(new_weights, merged.model)
    for layer, others in merged.folded.items():
        print(f"{layer} has taken in {', '.join(others)}")
    print(f"{new_net}: {sum(map(len, merged.folded.values()))} layers fewer than {net}")
    return 0
