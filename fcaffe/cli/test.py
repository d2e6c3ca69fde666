"""`fcaffe test`: scores a model on a net's test data."""

from __future__ import annotations

import contextlib

import click

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import Flags, caffe_flags, command
from fcaffe.cli.gpus import first_gpu
from fcaffe.errors import UsageError
from fcaffe.input_files import require_inputs
from fcaffe.net.weights import load_weights, tell_untouched
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.evaluation import AP_VERSIONS, Detections, collectors
from fcaffe.tools.nets import new_net, read_net_for, score


@command(
    example="test --model train_val.prototxt --weights net.caffemodel --iterations 100",
    file_flag="--model",
    help="Run --iterations batches of the net --model FILE in phase TEST with --weights FILE, and print each of its "
    "outputs and their means; for DetectionEvaluate and EvalDetection layers the mean average precision.",
    flags=caffe_flags("model", "weights", "iterations", "gpu", "level", "stage"),
)
@click.option(
    "--ap-version",
    type=click.Choice(AP_VERSIONS),
    help="Average precision of DetectionEvaluate layers: as ap_version of SSD's solvers (Integral).",
)
@click.option("--per-class", is_flag=True, help="Print the average precision of each class.")
@engine_flags
def test(flags: Flags, engines: EngineFlags, ap_version: str | None, per_class: bool) -> int:
    if not flags.model:
        raise UsageError("Need a model definition to score. Give it as --model FILE")
    if not flags.weights:
        raise UsageError("Need model weights to score. Give them as --weights FILE")
    iterations = flags.checked_iterations()
    gpu = first_gpu(flags.gpu)
    require_inputs(flags.weights)
    if gpu:
        log.use_gpu_to_test(*gpu)
    else:
        log.use_cpu_to_test()
    engine = engines.create(gpu and gpu[0])
    param = read_net_for(flags.model, pb.TEST, flags.level, flags.stages, writes_files=True)
    with contextlib.closing(new_net(param, engine)) as net:
        if (ap_version or per_class) and not any(isinstance(one, Detections) for one in collectors(net)):
            raise UsageError(
                f"--ap-version and --per-class are for nets with an output of DetectionEvaluate: {flags.model} has none"
            )
        model = load_weights(net, flags.weights)
        tell_untouched(net, {layer.name for layer in model.layers}, flags.weights)
        score(net, iterations, ap_version or AP_VERSIONS[0], per_class)
    return 0
