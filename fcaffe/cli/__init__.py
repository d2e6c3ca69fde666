"""The command line: `fcaffe <command>`, and `caffe <command>` for scripts that were written for Caffe.

Only this module prints usage and returns exit codes. It prints every error, fcaffe's own or the machine's, as one line.
"""

from __future__ import annotations

# ruff: noqa: E402 - Ctrl-C must be quiet while modules load, and the number of threads must be set before NumPy and
# OpenMP load
import fcaffe.interruption as interruption
import fcaffe.threads as threads

interruption.begin()
threads.set_for_command()

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

import fcaffe
from fcaffe import log
from fcaffe.cli import gflags, glog, last_words, streams
from fcaffe.cli.commands import CAFFE_COMMANDS, COMMANDS, FLOW, OTHERS, TOOLS, module_of
from fcaffe.errors import FcaffeError, RankError
from fcaffe.interruption import INTERRUPTED
from fcaffe.jobs.started import FATAL, started_as, wait_for_turn
from fcaffe.onednn_library import find_onednn

RUNS = ("train", "test", "time")  # commands whose results are in the log: they outlive standard output

BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments` default to those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if (tool := glog.program()) in COMMANDS:
        words = [tool, *words]  # convert_imageset is `fcaffe convert_imageset`
    trace = False
    streams.begin()
    try:
        words = list(gflags.inline(words))
        trace = any(gflags.flag_name(word) == "traceback" for word in words)
        if arguments is None and gflags.value_of("reproducible", words) not in (None, "0"):
            threads.compute_with_one_thread()  # before a command loads NumPy
        interruption.raise_in_command()
        if interruption.is_command:
            last_words.begin()
        code = _run(_command_first(words))
        sys.stdout.flush()
        return code
    except BaseException as error:
        return _failed(error, trace)
    finally:
        interruption.end()
        log.close_files()


def _failed(error: BaseException, trace: bool) -> int:
    """Print the error, and return the exit code. An error of a rank ends all ranks."""
    if not isinstance(error, RankError):
        return _tell(error, trace)
    assert error.__cause__ is not None
    world, cause = error.world, error.world.judged(error.__cause__)
    wait_for_turn(world.rank)
    world.abort(_tell(cause, trace, world))
    return FATAL


def _tell(error: BaseException, trace: bool, world: Any = None) -> int:
    """Print the error and return the exit code. With several ranks, `world` names the one that failed."""
    streams.outlast_output()  # it may be what failed, and Python writes there once more at exit
    if isinstance(error, KeyboardInterrupt) or interruption.has_come():
        return INTERRUPTED
    if isinstance(error, click.UsageError):
        start = started_as()
        for line in error.format_message().splitlines() if start is None or start.rank == 0 else []:
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
    if trace or os.environ.get("FCAFFE_TRACEBACK"):
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]  # where the error arose, for the tag of the log line
    (world or log).fatal(_one_line(error), f"{os.path.basename(frame.filename)}:{frame.lineno}")
    return FATAL


def _run(words: list[str]) -> int:
    """Run the command `words[0]` with the other words; returns the exit code."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words[:1] == ["version"] or "version" in map(gflags.flag_name, words):
        engine = "oneDNN" if find_onednn() else "NumPy"
        is_caffe, number = glog.program() == "caffe", fcaffe.__version__
        print(f"caffe version 1.0.0 (fcaffe {number})" if is_caffe else f"fcaffe version {number}, {engine} engine")
        return 0
    name = words[0] if words else "--help"
    if name.startswith("-"):
        if words and not gflags.asks_for_help(words) and name != "--":
            raise click.UsageError(
                f"no command is given: {glog.program()} <command> <flags>; see {glog.program()} help"
            )
        print(_usage())
        return 0
    if name not in COMMANDS:
        log.unknown_action(name, sorted(COMMANDS))
        return FATAL
    try:
        command, program = _load(name), glog.program()
        called = name if program == name else f"{program} {name}"  # convert_imageset, or fcaffe train
        return _invoke(command, command.make_context(called, words[1:]))
    except click.exceptions.Exit as done:  # --help
        return done.exit_code


def _invoke(command: click.Command, context: click.Context, **values: Any) -> int:
    """Call the command's function, with the values that the context has parsed or with these."""
    import numpy as np

    with np.errstate(all="ignore"), context:  # the loss tells of a diverging net, not NumPy's warnings
        if command.name in RUNS:
            streams.outlast_output()
        context.params |= values
        log.begin_command()
        code = command.invoke(context) or 0
        log.end_command()
        return code


def _command_first(words: list[str]) -> list[str]:
    """Return `words` with the command's name first, if flags precede it.

    Of several words that name commands, one behind `--flag` is more likely that flag's value.
    """
    if not words or words[0] == "--" or not words[0].startswith("-"):
        return words
    named = [index for index, word in enumerate(words) if word in (*COMMANDS, "help")]
    free = [index for index in named if not gflags.flag_name(words[index - 1]) or "=" in words[index - 1]]
    if not named:
        return words
    index = (free or named)[0]
    return [words[index], *words[:index], *words[index + 1 :]]


def _load(name: str) -> click.Command:
    from fcaffe import as_caffe

    as_caffe.keeps_current_folder = True
    command: click.Command = getattr(import_module(module_of(name)), name.replace("-", "_"))
    return command


def _usage() -> str:
    formatter = click.HelpFormatter(width=100)
    formatter.write_usage(glog.program(), "<command> <flags>", prefix="usage: ")
    for heading, commands in (
        ("commands", CAFFE_COMMANDS),
        ("from pictures to predictions", FLOW),
        ("Caffe's tools", TOOLS),
        ("more", OTHERS),
    ):
        with formatter.section(heading):
            formatter.write_dl(list(commands.items()))
    formatter.write_paragraph()
    formatter.write_text(
        "Flags are -flag value, --flag value, -flag=value or --flag=value, or lines of --flagfile=FILE."
    )
    formatter.write_text(f"{glog.program()} help <command> shows its flags and an example.")
    return formatter.getvalue().rstrip()


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
