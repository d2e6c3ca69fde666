"""The page of a training that has been, from its log, its solver and a model."""

from __future__ import annotations

import contextlib

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.log.reader import read_log
from fcaffe.net import Context, Net
from fcaffe.net.weights import load_weights
from fcaffe.proto import read_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers.nets import test_net_params, train_net_param
from fcaffe.tools.report.evaluation import evaluate
from fcaffe.tools.report.net_content import drawing, first_filters, layer_rows, prototxts
from fcaffe.tools.report.page import Content, write_page


def write_report(log_file: str, page: str, solver_file: str, weights: str, engine: Engine) -> None:
    """Write the page. `solver_file` and `weights`, a model of its nets, may be "": less is shown then.

    Raises FcaffeError.
    """
    found = read_log(log_file)
    last = max(max(curve) for curve in found.curves() if curve)
    content = Content(found.net or "Training", f"{log_file}, up to iteration {last:,}.", found)
    if solver_file:
        param = read_solver(solver_file)
        content.prototxts = prototxts(solver_file)
        content.drawing = drawing(train_net_param(param)[0])
        tests = test_net_params(param)
        net_param, _ = tests[0] if tests else train_net_param(param)
        with log.quiet(), contextlib.closing(Net(net_param, Context(engine, CaffeRandom(0), noise="counter"))) as net:
            seconds = None
            if weights:
                load_weights(net, weights)
                content.filters_of, content.filters = first_filters(net)
                if tests and (evaluation := evaluate(net, range(param.test_iter[0]))):
                    content.evaluation, seconds = evaluation, evaluation.seconds
            content.layers = layer_rows(net, seconds)
    content.tiles = [
        (f"test {output.name}", f"{output.curve[max(output.curve)]:.4g}")
        for net_curves in found.test_nets.values()
        for output in net_curves.outputs.values()
        if output.curve  # a log that was cut names outputs whose values are gone
    ][:6]
    write_page(page, content)
