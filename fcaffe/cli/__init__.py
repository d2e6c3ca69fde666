"""The command line: `fcaffe <command>`, and `caffe <command>` for scripts that were written for Caffe.

Only here is usage printed and an exit code given. Errors, fcaffe's own and the machine's, become one line at level F.
"""

from __future__ import annotations

# ruff: noqa: E402 - Ctrl-C is to be quiet while modules are loaded, and the settings of threads must be there before
# NumPy and OpenMP are
import fcaffe.interruption as interruption
import fcaffe.threads as threads

interruption.begin()
threads.set_for_command()

import os
import sys
import traceback

import click
import numpy as np

import fcaffe
from fcaffe import log
from fcaffe.cli import flags, gflags, glog, last_words, streams
from fcaffe.cli.bench import bench
from fcaffe.cli.completion import answer, completion
from fcaffe.cli.compute_image_mean import compute_image_mean
from fcaffe.cli.convert import convert
from fcaffe.cli.convert_imageset import convert_imageset
from fcaffe.cli.device_query import device_query
from fcaffe.cli.extract_features import extract_features
from fcaffe.cli.lmdb import lmdb
from fcaffe.cli.parse_log import extract_seconds, parse_log
from fcaffe.cli.plot import plot
from fcaffe.cli.plot_training_log import plot_training_log
from fcaffe.cli.resize_and_crop_images import resize_and_crop_images
from fcaffe.cli.solver import solver
from fcaffe.cli.summarize import summarize
from fcaffe.cli.summary import summary
from fcaffe.cli.test import test
from fcaffe.cli.time import time
from fcaffe.cli.train import train
from fcaffe.cli.upgrade import upgrade_net_proto_binary, upgrade_net_proto_text, upgrade_solver_proto_text
from fcaffe.errors import FcaffeError
from fcaffe.interruption import INTERRUPTED
from fcaffe.parallel.started import started_as
from fcaffe.parallel.world import RankError, World
from fcaffe.pycaffe import python
from fcaffe.suggestions import did_you_mean

CAFFE_COMMANDS: list[click.Command] = [train, test, time, device_query]
RUNS: list[click.Command] = [train, test, time]  # what these find out is in the log; they outlive standard output
TOOLS: list[click.Command] = [  # programs of their own in Caffe, by whose names they are installed as well
    convert_imageset,
    compute_image_mean,
    extract_features,
    upgrade_net_proto_text,
    upgrade_net_proto_binary,
    upgrade_solver_proto_text,
]
OTHERS: list[click.Command] = [
    summary,
    solver,
    convert,
    bench,
    lmdb,
    plot,
    plot_training_log,
    parse_log,
    extract_seconds,
    summarize,
    resize_and_crop_images,
    completion,
]
COMMANDS: dict[str, click.Command] = {str(c.name): c for c in (*CAFFE_COMMANDS, *TOOLS, *OTHERS)}

FATAL = 134  # what a shell sees of Caffe, which aborts
BROKEN_PIPE = 141


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. `arguments` default to those of the process."""
    words = sys.argv[1:] if arguments is None else arguments
    if (tool := glog.program()) in COMMANDS:  # convert_imageset is `fcaffe convert_imageset`
        words = [tool, *words]
    trace = bool(os.environ.get("FCAFFE_TRACEBACK"))
    streams.begin()
    try:
        interruption.raise_in_command()
        if interruption.is_command:
            last_words.begin()
        python.keeps_current_folder = True
        if (answered := answer(glog.program(), COMMANDS)) is not None:
            return answered
        given, others = gflags.split(words, _options())
        trace = trace or "--traceback" in given
        code = _run(given, others)
        sys.stdout.flush()
        return code
    except RankError as failed:
        world, error = failed.world, failed.__cause__
        assert error is not None
        world.wait_for_turn()
        world.abort(_tell(error, trace, world))
        return FATAL
    except BaseException as error:
        return _tell(error, trace)
    finally:
        interruption.end()
        log.close_files()


def _tell(error: BaseException, trace: bool, world: World | None = None) -> int:
    """Print what the error is; returns the exit code. Of several ranks, `world` says which one speaks."""
    streams.outlast_output()  # it may be what failed, and Python writes there once more at exit
    if isinstance(error, KeyboardInterrupt) or interruption.has_come():
        return INTERRUPTED
    if isinstance(error, gflags.FlagError | click.UsageError):
        message = _gflags_words(error) if isinstance(error, click.UsageError) else str(error)
        start = started_as()
        for line in message.splitlines() if start is None or start.rank == 0 else []:
            print(f"ERROR: {line}", file=sys.stderr)
        return 1
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    if isinstance(error, BrokenPipeError):  # the reader of standard output has had enough
        return BROKEN_PIPE
    if not isinstance(error, Exception):
        raise error
    if trace:
        traceback.print_exception(error)
    message = _one_line(error)
    log.fatal(world.signed(message) if world else message, _source(error))
    return FATAL


def _run(given: list[str], others: list[str]) -> int:
    if "--version" in given:
        print(_version())
        return 0
    name = others[0] if others else ""
    command = COMMANDS.get(name)
    helps = any(flag.startswith("--help") for flag in given)
    if helps and command is not None:
        given = ["--help"]
    elif helps or not others or (len(others) > 1 and (command is None or command in CAFFE_COMMANDS)):
        print(_usage())
        return 0
    if command is None:
        log.unknown_action(name, sorted(COMMANDS))
        return FATAL
    words = [*given, "--", *others[1:]]
    try:
        with (
            np.errstate(all="ignore"),  # a diverging net is told of by its loss, not by NumPy's warnings
            command.make_context(_called(name), words, obj=[*others, *given]) as context,
        ):
            if command in RUNS:
                streams.outlast_output()
            return command.invoke(context) or 0
    except click.exceptions.Exit as done:  # --help
        return done.exit_code


def _called(name: str) -> str:
    """How this command is called: `fcaffe train`, or only `convert_imageset`."""
    return name if glog.program() == name else f"{glog.program()} {name}"


def _options() -> dict[str, click.Option]:
    """All flags of all commands, by name."""
    everything = [*flags.HELP, *(param for command in COMMANDS.values() for param in command.params)]
    options = [option for option in everything if isinstance(option, click.Option)]
    return {gflags.flag_name(name): option for option in options for name in option.opts}


def _usage() -> str:
    formatter = click.HelpFormatter(width=100)
    formatter.write_usage(glog.program(), "<command> <flags>", prefix="usage: ")
    for heading, commands in (("commands", CAFFE_COMMANDS), ("Caffe's tools", TOOLS), ("more", OTHERS)):
        with formatter.section(heading):
            formatter.write_dl([(str(command.name), str(command.short_help)) for command in commands])
    test.format_options(click.Context(test), formatter)
    formatter.write_paragraph()
    formatter.write_text(
        "Flags are -flag value, --flag value, -flag=value or --flag=value, or lines of --flagfile=FILE."
    )
    formatter.write_text(f"More on a command: {glog.program()} <command> --help")
    return formatter.getvalue().rstrip()


def _version() -> str:
    if glog.program() == "caffe":
        return f"caffe version 1.0.0 (fcaffe {fcaffe.__version__})"
    return f"fcaffe version {fcaffe.__version__}"


def _gflags_words(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.lstrip("-")
        known = (option.name for option in error.ctx.command.params) if error.ctx else ()
        return f"unknown command line flag '{name}'{did_you_mean(name, filter(None, known), '--')}"
    return error.format_message()


def _one_line(error: Exception) -> str:
    if isinstance(error, FcaffeError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"Not enough memory: {error or 'an allocation failed'}; a smaller batch_size needs less"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    message = " ".join(str(error).split())
    if type(error).__module__.startswith(("cupy", "cudnn")):
        where = "CUDA_LAUNCH_BLOCKING=1 with --no-graph --traceback shows where"
        return f"The GPU or its libraries failed: {message} ({where})"
    return (
        f"{type(error).__name__}: {message} (this is a fault in fcaffe or in a layer of yours; --traceback shows where)"
    )


def _source(error: BaseException) -> str:
    """File and line where the error arose, which is what the tag of a log line is."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"
