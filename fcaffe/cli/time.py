"""`fcaffe time`: times the layers of a net, or profiles them, or compares splits of the cores."""

from __future__ import annotations

import click

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import Flags, caffe_flags, phase_number
from fcaffe.cli.gpus import first_gpu
from fcaffe.cli.table import print_table
from fcaffe.cli.usage import Command
from fcaffe.errors import UsageError
from fcaffe.net.weights import load_weights
from fcaffe.threads import available_cpus
from fcaffe.tools.nets import load_net
from fcaffe.tools.profile import COLUMNS, profile, rows_of, totals
from fcaffe.tools.scaling import advice, measure_splits
from fcaffe.tools.timing import benchmark


@click.command(
    cls=Command,
    example="time --model train_val.prototxt --iterations 10",
    file_flag="--model",
    help="Time forward and backward of each layer of the net --model FILE: the average over --iterations batches after "
    "a warm-up of one.",
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
@caffe_flags("model", "weights", "iterations", "gpu", "phase", "level", "stage")
def time(flags: Flags, engines: EngineFlags, profiled: bool, scaling: bool, input_shape: str) -> int:
    if not flags.model:
        raise UsageError("Need a model definition to time. Give it as --model FILE")
    if scaling:
        _scaling(flags, engines, input_shape)
        return 0
    if input_shape:
        raise UsageError("--input-shape is for --scaling: leave it out")
    phase = phase_number(flags.phase)
    iterations = flags.checked_iterations()
    if gpu := first_gpu(flags.gpu):
        log.use_gpu_to_time(gpu[0])
    else:
        log.use_cpu_to_time()
    net = load_net(flags.model, phase, engines.create(gpu and gpu[0]), flags.level, flags.stages)
    try:
        if flags.weights:
            load_weights(net, flags.weights)
        if profiled:
            found = profile(net, iterations)
            print_table(f"Layers of {net.name or 'the net'}", COLUMNS, rows_of(found), numbers_from=2)
            click.echo(totals(found))
        else:
            benchmark(net, iterations)
    finally:
        net.close()
    return 0


def _scaling(flags: Flags, engines: EngineFlags, input_shape: str) -> None:
    """Measure the splits of the cores; print them and the advice. Raises UsageError for incompatible flags."""
    if flags.gpu or engines.engine or engines.math != "fp32":
        raise UsageError("--scaling trains on CPUs in float32: leave out --gpu, --engine and --math")
    if (cores := available_cpus()) == 1:
        raise UsageError("--scaling: this process may run on one CPU only, so there is nothing to split")
    results = measure_splits([f"--net={flags.model}", f"--input-shape={input_shape}"], cores, log.info)
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
