"""Commands that run a net: `test` scores it, `time` measures its layers; `extract_features`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags, first_gpu
from fcaffe.cli.flags import Flags, command, phase_number, required
from fcaffe.cli.progress import counted
from fcaffe.cli.table import print_table
from fcaffe.data import array_to_datum
from fcaffe.data.backends import new_database
from fcaffe.data.database import Writer
from fcaffe.errors import DataError, UsageError
from fcaffe.input_files import require_inputs
from fcaffe.net import Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.evaluation import AP_VERSIONS, Detections, collectors
from fcaffe.tools.confusion import Confusion
from fcaffe.tools.nets import load, new_net, read_net_for, score
from fcaffe.tools.profile import COLUMNS, benchmark, profile

WORDS = "WEIGHTS NET BLOB[,BLOB...] DATABASE[,DATABASE...] BATCHES lmdb|leveldb [CPU|GPU] [DEVICE]"
REPORT = 1000  # records of extract_features between two lines of the log


@command(
    example="test --model train_val.prototxt --weights net.caffemodel --iterations 100",
    file_flag="--model",
    help="Run --iterations batches of the net --model FILE in phase TEST with --weights FILE, and print each of its "
    "outputs and their means; for DetectionEvaluate and EvalDetection layers the mean average precision.",
    caffe="model weights iterations gpu level stage",
)
@click.option(
    "--ap-version",
    type=click.Choice(AP_VERSIONS),
    help="Average precision of DetectionEvaluate layers: as ap_version of SSD's solvers (Integral).",
)
@click.option(
    "--per-class",
    is_flag=True,
    help="Print the accuracy of each class and what it is taken for; for detections its average precision.",
)
@engine_flags
def test(flags: Flags, engines: EngineFlags, ap_version: str | None, per_class: bool) -> int:
    if not flags.model:
        raise UsageError("Need a model definition to score. Give it as --model FILE")
    if not flags.weights:
        raise UsageError("Need model weights to score. Give them as --weights FILE")
    gpu = first_gpu(flags.gpu)
    require_inputs(flags.weights)
    if gpu:
        log.use_gpu_to_test(*gpu)
    else:
        log.use_cpu_to_test()
    engine = engines.create(gpu and gpu[0])
    param = read_net_for(flags.model, pb.TEST, flags.level, flags.stages, writes_files=True)
    with contextlib.closing(new_net(param, engine)) as net:
        detects = any(isinstance(one, Detections) for one in collectors(net))
        if ap_version and not detects:
            raise UsageError(f"--ap-version is for nets with an output of DetectionEvaluate: {flags.model} has none")
        if per_class and not (detects or Confusion(net).classes):
            raise UsageError(f"--per-class is for nets with classes, and {flags.model} scores none: leave it out")
        load(net, flags.weights)
        score(net, flags.iterations, ap_version or AP_VERSIONS[0], per_class)
    return 0


@command(
    example="time --model train_val.prototxt --iterations 10",
    file_flag="--model",
    help="Time forward and backward of each layer of the net --model FILE: the average over --iterations batches after "
    "a warm-up of one.",
    caffe="model weights iterations gpu phase level stage",
)
@click.option("--profile", "profiled", is_flag=True, help="Compare all layers with the machine's peaks.")
@engine_flags
def time(flags: Flags, engines: EngineFlags, profiled: bool) -> int:
    if not flags.model:
        raise UsageError("Need a model definition to time. Give it as --model FILE")
    phase = phase_number(flags.phase)
    require_inputs(flags.weights)
    if gpu := first_gpu(flags.gpu):
        log.use_gpu_to_time(gpu[0])
    else:
        log.use_cpu_to_time()
    engine = engines.create(gpu and gpu[0])
    param = read_net_for(flags.model, phase, flags.level, flags.stages)
    with contextlib.closing(new_net(param, engine, inference=False, whole_passes=False)) as net:
        if flags.weights:
            load(net, flags.weights)
        if profiled:
            rows, totals = profile(net, flags.iterations)
            print_table(f"Layers of {net.name or 'the net'}", COLUMNS, rows, numbers_from=2)
            click.echo(totals)
        else:
            benchmark(net, flags.iterations)
    return 0


@command(
    example="extract_features net.caffemodel net.prototxt fc6,fc7 fc6_lmdb,fc7_lmdb 100 lmdb",
    help="Run BATCHES batches of the net of the prototxt NET in phase TEST, with WEIGHTS, and write each BLOB to the "
    "DATABASE of the same position, a record for each image.",
)
@click.argument("words", nargs=-1, metavar=WORDS)
@engine_flags
def extract_features(words: tuple[str, ...], engines: EngineFlags) -> int:
    weights, path, blobs, databases, count, backend, *device = required(words, 6, 8)
    if not count.isdecimal() or not int(count):
        raise UsageError(f"the number of batches must be 1 or more, not '{count}'")
    require_inputs(weights)
    gpu = None
    if device[:1] == ["GPU"]:
        gpu = first_gpu(device[1] if len(device) > 1 else "0")
        assert gpu is not None
        log.extracting_on_gpu(gpu[0])
    else:
        log.extracting_on_cpu()
    engine = engines.create(gpu and gpu[0])
    param = read_net_for(path, pb.TEST)
    with contextlib.closing(new_net(param, engine, whole_passes=False)) as net:
        load(net, weights)
        batches = counted(range(int(count)), int(count), "batches")
        extract(net, blobs.split(","), databases.split(","), backend, batches)
    return 0


def extract(net: Net, blobs: Sequence[str], paths: Sequence[str], backend: str, batches: Iterable[int]) -> None:
    """Run the net once for each of `batches`, and write the values of each blob to the database of the same index.

    A record has the values of one item (an index of the first axis) as float_data. Keys are ten digits. Raises
    UsageError, DataError.
    """
    if len(blobs) != len(paths):
        raise UsageError(f"{len(blobs)} blobs need as many databases, not {len(paths)}: separate each by commas")
    for name in blobs:
        if name not in net.blob_names:
            raise UsageError(f'the net has no blob "{name}"; it has {", ".join(dict.fromkeys(net.blob_names))}')
    with contextlib.ExitStack() as opened:
        writers = []
        for path in paths:
            log.opening_dataset(path)
            writers.append(opened.enter_context(new_database(path, backend)))
        log.extracting()
        for _ in batches:
            net.forward()
            for name, writer in zip(blobs, writers, strict=True):
                _put(name, net.context.engine.to_numpy(net.blob(name).data), writer)
        for name, writer in zip(blobs, writers, strict=True):
            log.blob_extracted(writer.count, name)
    log.all_extracted()


def _put(name: str, values: np.ndarray, writer: Writer) -> None:
    """Write each item as channels x height x width. Missing axes are 1."""
    if values.ndim > 4:
        raise DataError(f'blob "{name}" has {values.ndim} axes, and a record has three besides the batch: reshape it')
    for item in values if values.ndim else values[np.newaxis]:
        image = item.reshape(item.shape + (1,) * (3 - item.ndim)).astype(np.float32, copy=False)
        writer.put(b"%010d" % writer.count, array_to_datum(image).SerializeToString())
        if writer.count % REPORT == 0:
            log.extracted(writer.count, name)
