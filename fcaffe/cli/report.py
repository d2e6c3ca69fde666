"""`fcaffe report`: writes a page about a finished training."""

from __future__ import annotations

import click

from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import command
from fcaffe.errors import UsageError


@command(
    example="report train.log page.html --solver solver.prototxt --weights net_iter_10000.caffemodel",
    help="Write the page PAGE.html about a training from its LOG, fcaffe's or Caffe's, with its curves. --solver adds "
    "the nets and their prototxts. --weights, a model of that training, adds the mistakes of the first test net and "
    "the first filters. `train --report` writes such a page while it trains.",
)
@click.argument("log_file", metavar="LOG")
@click.argument("page", metavar="PAGE.html")
@click.option("--solver", default="", metavar="FILE", help="The solver's prototxt.")
@click.option("--weights", default="", metavar="FILE", help="A model of the training; needs --solver.")
@engine_flags
def report(engines: EngineFlags, log_file: str, page: str, solver: str, weights: str) -> int:
    from fcaffe.tools.report.recorder import write_report

    if weights and not solver:
        raise UsageError(f"--weights {weights} needs the net that they belong to: give --solver FILE as well")
    write_report(log_file, page, solver, weights, engines.create(None))
    return 0
