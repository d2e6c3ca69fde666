"""The page of a finished training, from its log, its solver and a model."""

from __future__ import annotations

import contextlib
import os

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.log.reader import read_log
from fcaffe.net import Context, Net
from fcaffe.net.weights import load_weights
from fcaffe.proto import read_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers.nets import test_net_params, train_net_param
from fcaffe.tools.report.evaluation import evaluate
from fcaffe.tools.report.net_content import first_filters, net_content, prototxts
from fcaffe.tools.report.page import Content, write_page


def write_report(log_file: str, page: str, solver_file: str, weights: str, engine: Engine) -> None:
    """Write the page. `solver_file` and `weights`, a model of its nets, may be "": then the page has fewer parts.

    Raises FcaffeError.
    """
    found = read_log(log_file)
    last = max(max(curve) for curve in found.curves() if curve)
    content = Content(found.net or "Training", f"{log_file}, up to iteration {last:,}.", found)
    if solver_file:
        param = read_solver(solver_file)
        content.prototxts = prototxts(solver_file)
        tests = test_net_params(param)
        net_param, _ = tests[0] if tests else train_net_param(param)
        with log.quiet(), contextlib.closing(Net(net_param, Context(engine, CaffeRandom(0), noise="counter"))) as net:
            content.net = net_content(net, net_param)
            if weights:
                load_weights(net, weights)
                content.net.filters_of, content.net.filters = first_filters(net)
                if tests:
                    moment = f"with {os.path.basename(weights)}"
                    content.evaluation = evaluate(net, range(param.test_iter[0]), moment)
    write_page(page, content)
