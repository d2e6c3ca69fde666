"""`fcaffe time`: times the layers of a net."""

from __future__ import annotations

import click

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import Flags, caffe_flags, phase_number
from fcaffe.cli.gpus import first_gpu
from fcaffe.cli.usage import Command
from fcaffe.errors import UsageError
from fcaffe.tools.nets import load_net
from fcaffe.tools.profile import describe, profile
from fcaffe.tools.timing import benchmark


@click.command(
    cls=Command,
    example="time --model train_val.prototxt --iterations 10",
    help="Time forward and backward of each layer of the net --model FILE, on average over --iterations batches after "
    "one to warm up.",
)
@click.option("--profile", "profiled", is_flag=True, help="A table of all layers, held against the machine's peaks.")
@engine_flags
@caffe_flags
def time(flags: Flags, engines: EngineFlags, profiled: bool) -> int:
    if not flags.model:
        raise UsageError("Need a model definition to time. Give it as --model FILE")
    phase = phase_number(flags.phase)
    iterations = flags.checked_iterations()
    if gpu := first_gpu(flags.gpu):
        log.use_gpu_to_time(gpu[0])
    else:
        log.use_cpu_to_time()
    net = load_net(flags.model, phase, engines.create(gpu and gpu[0]), flags.level, flags.stages)
    try:
        if profiled:
            for line in describe(profile(net, iterations)):
                click.echo(line)
        else:
            benchmark(net, iterations)
    finally:
        net.close()
    return 0
