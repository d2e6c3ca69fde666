"""Nets from their prototxts, as the commands build them, and their scores: outputs over some batches, and means."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.engines import Engine
from fcaffe.errors import SnapshotError, UsageError
from fcaffe.model_files import Model
from fcaffe.net import Context, Net
from fcaffe.net.build.filter import filter_net
from fcaffe.net.weights import copy_weights, load_weights, misfit, tell_untouched
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, read_solver
from fcaffe.rng import CaffeRandom
from fcaffe.rng.counter import TEST, Moment
from fcaffe.solvers.evaluation import AP_VERSIONS, Detections, collectors
from fcaffe.solvers.memory_need import check_memory
from fcaffe.solvers.nets import test_net_params, train_net_param
from fcaffe.tools.confusion import Confusion

GUESSES = 5  # wrong ones that are logged for a class
PLAIN = {"type": "SGD", "momentum": 0.9, "weight_decay": 0.0005}  # the solver of a net without one


def read_net_for(path: str, phase: int, level: int = 0, stages: Iterable[str] = (), writes_files: bool = False) -> Any:
    """The parameters of the net of a prototxt, in this phase (pb.TRAIN, pb.TEST), at this level and in these stages.

    Without `writes_files` the net writes no files of detections. The files that `save_output_param` of a published
    deploy net names are seldom there.
    """
    param = read_net(path)
    if not writes_files:
        for layer in param.layer:
            if layer.HasField("detection_output_param"):
                layer.detection_output_param.ClearField("save_output_param")
    param.state.phase = phase
    param.state.level = level
    param.state.stage.extend(stages)
    return param


def new_net(param: Any, engine: Engine, inference: bool = True, whole_passes: bool = True) -> Net:
    """A net of these parameters, with weights from its fillers; `inference` and `whole_passes` as in Context.

    Raises OutOfMemoryError before it allocates.
    """
    net = Net(
        param, Context(engine, CaffeRandom(None), noise="counter", inference=inference, whole_passes=whole_passes)
    )
    check_memory(net)
    return net


def load(net: Net, path: str) -> None:
    """Copy the weights in a file into a net of a command, and log the layers without.

    Raises SnapshotError if no layer has any.
    """
    loaded = {layer.name for layer in load_weights(net, path).layers}
    if problem := misfit(net, loaded, path):
        raise SnapshotError(problem)
    tell_untouched(net, loaded, path)


def read_training(path: str, is_solver: bool) -> tuple[Any, Any, str]:
    """The SolverParameter of the solver at `path`, the filtered parameters of its training net, and that net's file.

    For the path of a net, the solver is SGD. Raises FcaffeError.
    """
    solver = read_solver(path) if is_solver else pb.SolverParameter(net=path, **PLAIN)
    net, field = train_net_param(solver)
    return solver, filter_net(net), path if field.endswith("_param") else getattr(solver, field)


def score(
    net: Net, iterations: int, ap_version: str = AP_VERSIONS[0], per_class: bool = False
) -> list[tuple[str, float]]:
    """Run this many batches forward; log every output of each batch, then the mean loss and the mean outputs.

    Of DetectionEvaluate and EvalDetection layers only the mean average precision is logged, of this version, and with
    `per_class` that of each class. Of a classifier `per_class` logs the accuracy and the confusion of each class.
    Returns name and mean of each output that is one number.
    """
    log.running_for(iterations)
    engine = net.context.engine
    loss = np.float32(0)
    collected = collectors(net, ap_version, per_class)
    confusion = Confusion(net) if per_class else None
    for batch in range(iterations):
        loss += np.float32(net.forward(moment=Moment(TEST, 0, batch)))
        if confusion is not None:
            confusion.add()
        for collector, (name, blob, _) in zip(collected, net.outputs(), strict=True):
            values = engine.to_numpy(blob.data).reshape(-1)
            collector.add(values)
            for value in () if isinstance(collector, Detections) else values:
                log.batch_output(batch, name, float(value))
    log.mean_loss(float(loss) / iterations)
    found = []
    for collector, (name, _, weight) in zip(collected, net.outputs(), strict=True):
        results = [float(value) for value in collector.result()]
        for value in results:
            log.mean_output(log.weighted(name, value, weight))
        if len(results) == 1:
            found.append((name, results[0]))
    if confusion is not None and (evaluation := confusion.result("")):
        for line in evaluation.lines(GUESSES):
            log.info(line)
    return found


def model_scores(param: Any, model: Model, engine: Engine) -> list[tuple[str, float]]:
    """Name and mean of each scalar output of all test nets of a SolverParameter, over test_iter batches each.

    Raises UsageError if there are no test nets, and SnapshotError if the model does not fit one.
    """
    found: list[tuple[str, float]] = []
    with log.quiet():
        sources = test_net_params(param)
        if not sources:
            raise UsageError("the solver has no test net: give it test_iter and test_interval, or leave --solver out")
        for (net_param, _), batches in zip(sources, param.test_iter, strict=True):
            with contextlib.closing(new_net(net_param, engine)) as net:
                copy_weights(net, model, "the model")
                found += score(net, batches)
    return found
