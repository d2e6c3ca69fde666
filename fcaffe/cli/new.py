"""`fcaffe new` writes the files of a training for a data set, and `fcaffe deploy` the deploy net of a train_val net."""

from __future__ import annotations

import os
import shlex

import click

from fcaffe.cli.flags import command, numbers_of_shape
from fcaffe.cli.table import say
from fcaffe.errors import UsageError
from fcaffe.input_files import require_inputs
from fcaffe.output_files import check_output
from fcaffe.proto import read_net, write_text
from fcaffe.proto.text import PROTOTXT
from fcaffe.tools.deploy import deploy_net, input_shapes
from fcaffe.tools.new_net import POLICIES, read_data, write_project
from fcaffe.tools.target import read_target
from fcaffe.tools.template import read_template


@command(
    example="new flowers --data data --net squeezenet_v1.1",
    help="Write train_val.prototxt, solver.prototxt and deploy.prototxt for a data set of fcaffe dataset into the new "
    "folder NAME. The net is one of fcaffe's models, or any train_val or deploy net of a classifier. With --weights "
    "the end for the classes starts afresh, and the layers with weights learn at a tenth of its rate.",
)
@click.argument("name", metavar="NAME")
@click.option("--data", "folder", default="", metavar="FOLDER", help="The data set.")
@click.option("--net", default="", metavar="NAME|FILE", help="The net: squeezenet_v1.1, cifar10_quick, or a prototxt.")
@click.option("--weights", default="", metavar="FILE", help="Weights of the net to finetune.")
@click.option("--epochs", default=30.0, metavar="N", help="How often training sees each picture (30).")
@click.option("--lr-policy", "policy", type=click.Choice(POLICIES), default="poly", help="How the rate falls (poly).")
@click.option(
    "--batch", type=click.IntRange(min=1), metavar="N", help="The batch of the training (the net's own, up to 64)."
)
@click.option("--base-lr", "rate", type=float, metavar="X", help="The rate (the net's own, scaled to the batch).")
def new(
    name: str, folder: str, net: str, weights: str, epochs: float, policy: str, batch: int | None, rate: float | None
) -> int:
    if not folder or not net:
        raise UsageError(
            "new needs a data set and a net, such as: fcaffe new flowers --data data --net squeezenet_v1.1"
        )
    if not epochs > 0:
        raise UsageError(f"--epochs must be more than 0, not {epochs:g}")
    require_inputs(weights)
    project = write_project(name, read_data(folder), read_template(net), weights, epochs, policy, batch, rate)
    for line in project.told:
        say(line)
    say(f"{name}: {', '.join(path.rpartition('/')[2] for path in project.files)}")
    start = f" --weights {shlex.quote(project.weights)}" if project.weights else ""
    solver = shlex.quote(os.path.join(name, "solver.prototxt"))
    say(f"Next: fcaffe train --solver {solver}{start} --report report.html")
    return 0


@command(
    example="deploy train_val.prototxt deploy.prototxt",
    help="Write the deploy net OUT of the net TRAIN_VAL: Inputs in place of its data layers, no labels, losses and "
    "scores, and the layer of probabilities in place of a loss that computes them.",
)
@click.argument("source", metavar="TRAIN_VAL")
@click.argument("out", metavar="OUT")
@click.option("--input-shape", default="", metavar="C,H,W", help="The shape of a record, if its database is not here.")
@click.option("--target", metavar="NAME|FILE", help="Refuse layers that this toolchain does not read.")
def deploy(source: str, out: str, input_shape: str, target: str | None) -> int:
    check_output(out, PROTOTXT, source)
    param = read_net(source)
    net = deploy_net(param, input_shapes(param, source, numbers_of_shape(input_shape)))
    if target:
        net = read_target(target).fitted(net, source)
    write_text(out, net)
    say(f"{out}: {len(net.layer)} layers of {source}")
    return 0
