"""`fcaffe draw_net`: draws the layers and blobs of a net, as Caffe's python/draw_net.py does."""

from __future__ import annotations

import click

from fcaffe.cli.flags import command
from fcaffe.errors import UsageError
from fcaffe.output_files import PICTURE, check_output
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net
from fcaffe.pycaffe.draw import draw_net_to_file

PHASES = {"TRAIN": pb.TRAIN, "TEST": pb.TEST, "ALL": None}
LONG = 60  # layers; in a row they are some ten thousand pixels wide


@command(
    example="draw_net train_val.prototxt net.svg --phase TRAIN",
    help="Draw the net IN (a prototxt) into the file OUT, whose name ends in the format: .svg, .png, .pdf, .raw "
    "(Graphviz's language), or any other format of Graphviz.",
)
@click.argument("net", metavar="IN")
@click.argument("picture", metavar="OUT")
@click.option("--rankdir", default="LR", metavar="LR|TB|RL|BT", help="Direction of the net: right, down, ... (LR).")
@click.option("--phase", default="ALL", metavar="TRAIN|TEST|ALL", help="Draw the layers of this phase only (ALL).")
@click.option("--display_lrm", is_flag=True, help="Show the lr_mult of layers that learn.")
def draw_net(net: str, picture: str, rankdir: str, phase: str, display_lrm: bool) -> int:
    if phase not in PHASES:
        raise UsageError(f'phase must be "TRAIN", "TEST" or "ALL", not "{phase}"')
    check_output(picture, PICTURE, net)
    param = read_net(net)
    print(f"Drawing net to {picture}")
    draw_net_to_file(param, picture, rankdir, PHASES[phase], display_lrm)
    if rankdir in ("LR", "RL") and len(param.layer) > LONG:
        print(f"A net of {len(param.layer)} layers makes a wide picture; --rankdir TB draws it downwards")
    return 0
