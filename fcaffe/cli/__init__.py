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
from importlib import import_module
from typing import Any

import click

import fcaffe
from fcaffe import log
from fcaffe.cli import flags, gflags, glog, last_words, streams, usage
from fcaffe.cli.commands import CAFFE_COMMANDS, COMMANDS, OTHERS, TOOLS
from fcaffe.errors import FcaffeError, RankError
from fcaffe.interruption import INTERRUPTED
from fcaffe.parallel.started import started_as
from fcaffe.suggestions import did_you_mean

RUNS = ("train", "test", "time")  # what these find out is in the log; they outlive standard output

FATAL = 134  # what a shell sees of Caffe, which aborts
BROKEN_PIPE = 141


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. `arguments` default to those of the process."""
    words = sys.argv[1:] if arguments is None else arguments
    if (
        tool := glog.program()
    ) in COMMANDS and tool in interruption.PROGRAMS:  # convert_imageset is `fcaffe convert_imageset`
        words = [tool, *words]
    trace = bool(os.environ.get("FCAFFE_TRACEBACK"))
    streams.begin()
    try:
        given, others = _split(words)
        trace = trace or "--traceback" in given
        interruption.raise_in_command()
        if interruption.is_command:
            last_words.begin()
        if os.environ.get(f"_{glog.program().upper()}_COMPLETE"):  # a shell asks how the present line may go on
            from fcaffe.cli.completion import answer

            return answer(glog.program(), {name: (_load(name), COMMANDS[name].short_help) for name in COMMANDS})
        code = _run(given, others)
        sys.stdout.flush()
        return code
    except RankError as failed:
        assert failed.__cause__ is not None
        world, error = failed.world, failed.world.judged(failed.__cause__)
        world.wait_for_turn()
        world.abort(_tell(error, trace, world))
        return FATAL
    except BaseException as error:
        return _tell(error, trace)
    finally:
        interruption.end()
        log.close_files()


def _tell(error: BaseException, trace: bool, world: Any = None) -> int:
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
    if isinstance(error, SystemExit):
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):  # the reader of standard output has had enough
        return BROKEN_PIPE
    if not isinstance(error, Exception):
        raise error
    if trace:
        traceback.print_exception(error)
    (world or log).fatal(_one_line(error), _source(error))
    return FATAL


def _run(given: list[str], others: list[str]) -> int:
    if "--version" in given:
        print(_version())
        return 0
    name = others[0] if others else ""
    helps = any(flag.startswith("--help") for flag in given)
    if helps and name in COMMANDS:
        given = ["--help"]
    elif helps or not others or (len(others) > 1 and (name not in COMMANDS or name in CAFFE_COMMANDS)):
        print(_usage())
        return 0
    if name not in COMMANDS:
        log.unknown_action(name, sorted(COMMANDS))
        return FATAL
    import numpy as np

    command = _load(name)
    words = [*given, "--", *others[1:]]
    try:
        with (
            np.errstate(all="ignore"),  # a diverging net is told of by its loss, not by NumPy's warnings
            command.make_context(_called(name), words, obj=[*others, *given]) as context,
        ):
            if name in RUNS:
                streams.outlast_output()
            return command.invoke(context) or 0
    except click.exceptions.Exit as done:  # --help
        return done.exit_code


def _called(name: str) -> str:
    """How this command is called: `fcaffe train`, or only `convert_imageset`."""
    return name if glog.program() == name else f"{glog.program()} {name}"


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Flags and other words, by the flags of the command that comes first, or else of all commands. Without a command,
    and with no other flags than --help and --version, no command is loaded."""
    named = words[:1] if words and words[0] in COMMANDS else []
    try:
        return gflags.split(words, _options(named))
    except gflags.FlagError:
        if named:
            raise
    return gflags.split(words, _options(list(COMMANDS)))


def _options(names: list[str]) -> dict[str, click.Option]:
    """All flags of these commands, and those that every command has, by name."""
    every = flags.common_flags(lambda: 0)
    everything = [
        *flags.HELP,
        *click.command()(every).params,
        *(param for name in names for param in _load(name).params),
    ]
    options = [option for option in everything if isinstance(option, click.Option)]
    return {gflags.flag_name(name): option for option in options for name in option.opts}


def _flags_of_test() -> click.Command:
    """A command with the flags of `test`, without loading that."""
    with_engine = flags.with_options(flags.ENGINE, usage.ENGINE)
    return click.command(cls=usage.Command)(with_engine(flags.caffe_flags(lambda: 0)))


def _load(name: str) -> click.Command:
    from fcaffe.pycaffe import python

    python.keeps_current_folder = True
    command: click.Command = getattr(import_module(COMMANDS[name].module), name.replace("-", "_"))
    return command


def _usage() -> str:
    formatter = click.HelpFormatter(width=100)
    formatter.write_usage(glog.program(), "<command> <flags>", prefix="usage: ")
    for heading, commands in (("commands", CAFFE_COMMANDS), ("Caffe's tools", TOOLS), ("more", OTHERS)):
        with formatter.section(heading):
            formatter.write_dl([(name, entry.short_help) for name, entry in commands.items()])
    _flags_of_test().format_options(click.Context(click.Command("test")), formatter)
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
