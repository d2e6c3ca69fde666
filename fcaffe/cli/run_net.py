"""Commands that run a net: `test` scores it, `time` measures its layers or splits of the cores, `extract_features`."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
from fcaffe.errors import DataError, FcaffeError, UsageError
from fcaffe.input_files import require_inputs
from fcaffe.net import Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.python_path import python
from fcaffe.solvers.evaluation import AP_VERSIONS, Detections, collectors
from fcaffe.threads import VARIABLES, available_cpus, environment_of_others
from fcaffe.tools.confusion import Confusion
from fcaffe.tools.nets import load, new_net, read_net_for, score
from fcaffe.tools.profile import COLUMNS, benchmark, profile

WORDS = "WEIGHTS NET BLOB[,BLOB...] DATABASE[,DATABASE...] BATCHES lmdb|leveldb [CPU|GPU] [DEVICE]"
REPORT = 1000  # records of extract_features between two lines of the log
MARGIN = 1.03  # repeated measurements of one split differ by so much


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
@click.option(
    "--scaling",
    is_flag=True,
    help="Time training steps instead, on synthetic batches, for each split of this host's cores between workers and "
    "threads, and print the fastest. The workers share the net's batch.",
)
@click.option("--input-shape", default="", metavar="C,H,W", help="With --scaling: shape of a record, if it is unknown.")
@engine_flags
def time(flags: Flags, engines: EngineFlags, profiled: bool, scaling: bool, input_shape: str) -> int:
    if not flags.model:
        raise UsageError("Need a model definition to time. Give it as --model FILE")
    if scaling:
        _scaling(flags, engines, input_shape)
        return 0
    if input_shape:
        raise UsageError("--input-shape is for --scaling: leave it out")
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


def _scaling(flags: Flags, engines: EngineFlags, input_shape: str) -> None:
    """Measure the splits of the cores; print them and the advice. Raises UsageError for incompatible flags."""
    if flags.gpu or engines.engine or engines.math != "fp32":
        raise UsageError("--scaling trains on CPUs in float32: leave out --gpu, --engine and --math")
    if (cores := available_cpus()) == 1:
        raise UsageError("--scaling: this process may run on one CPU only, so there is nothing to split")
    results = measure_splits([f"--net={flags.model}", f"--input-shape={input_shape}"], cores)
    rows = []
    for result in results:
        if result.problem:
            log.warning(f"{result}: {result.problem}")
            continue
        speed = result.batch / result.seconds
        rows.append((str(result.workers), str(result.threads), f"{1000 * result.seconds:.4g}", f"{speed:,.1f}"))
    batch = max(result.batch for result in results)
    print_table(f"Training steps of {batch} samples", ("workers", "threads", "ms", "images/s"), rows, 0)
    click.echo(advice(results))


class Split(NamedTuple):
    """A number of workers and of threads of each. `seconds` is the median of an iteration; `problem` says why there is
    none."""

    workers: int
    threads: int
    seconds: float = 0.0
    batch: int = 0
    problem: str = ""

    def __str__(self) -> str:
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{workers} of {self.threads} thread{'s' * (self.threads > 1)}"


def measure_splits(flags: Sequence[str], cores: int) -> list[Split]:
    """Measure each split of all cores into workers of equally many threads, by `fcaffe bench step` with these flags.

    Raises FcaffeError if no split can be measured.
    """
    results = []
    for workers in [number for number in range(1, cores + 1) if cores % number == 0]:
        split = Split(workers, cores // workers)
        log.info(f"Measuring {split}")
        command = python("-m", "fcaffe", "bench", "step", *flags, f"--workers={workers}", "--json")
        environment = environment_of_others() | dict.fromkeys(VARIABLES, str(split.threads))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith(("F", "ERROR"))]
            last = lines[-1] if lines else f"it ended with exit code {done.returncode}"
            results.append(split._replace(problem=last.partition("] ")[2] or last))
        else:
            result = json.loads(done.stdout)["results"][0]
            results.append(split._replace(seconds=result["ms"] / 1000, batch=result["batch"]))
    if all(result.problem for result in results):
        raise FcaffeError(results[0].problem)
    return results


def advice(results: Sequence[Split]) -> str:
    """A line with the best split, its time and another one's, and the flag for it."""
    known = sorted((result for result in results if not result.problem), key=lambda result: result.seconds)
    best, single = known[0], next((result for result in known if result.workers == 1), None)
    other = single if single and single is not best else known[1] if len(known) > 1 else None
    told = "; ".join(f"{each}: {1000 * each.seconds:.4g} ms" for each in (best, other) if each)
    if single and single.seconds < MARGIN * best.seconds:
        return f"{told}; {'one worker is' if single is best else 'that is not clearly'} faster, leave --workers out"
    return f"{told}; use --workers {best.workers}"


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
