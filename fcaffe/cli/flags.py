"""Caffe's flags, glog's, and those that every command has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import click

from fcaffe import log
from fcaffe.cli import glog, usage
from fcaffe.errors import UsageError

PHASES = ("TRAIN", "TEST")  # by their numbers in caffe.proto
Decorator = Callable[[Callable[..., int]], Callable[..., int]]


@dataclass(frozen=True)
class Flags:
    """The values of Caffe's flags. Each of Caffe's commands accepts all of them, and uses some."""

    solver: str
    model: str
    weights: str
    snapshot: str
    iterations: int
    gpu: str
    phase: str
    level: int
    stage: str
    sigint_effect: str
    sighup_effect: str

    @property
    def stages(self) -> list[str]:
        """The stages, split as in Caffe: without --stage there is one, which is empty."""
        return self.stage.split(",")

    def checked_iterations(self) -> int:
        if self.iterations < 1:
            raise UsageError(f"--iterations must be 1 or more, not {self.iterations}")
        return self.iterations


def phase_number(phase: str) -> int:
    """Return the number of a --phase flag's phase; TRAIN without the flag. Raises UsageError."""
    if phase not in ("", *PHASES):
        raise UsageError(f'phase must be "TRAIN" or "TEST", not "{phase}"')
    return PHASES.index(phase or "TRAIN")


def numbers(flag: str, text: str, least: int = 1) -> list[int]:
    """Return the whole numbers of a flag, such as "256,256"; none for an empty text. Raises UsageError."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and int(word) >= least for word in words):
        raise UsageError(f"{flag} takes {'positive ' * least}numbers with commas between them, not '{text}'")
    return [int(word) for word in words]


def numbers_of_shape(text: str) -> tuple[int, ...] | None:
    """Return the three numbers of an --input-shape flag; None without the flag. Raises UsageError."""
    shape = tuple(numbers("--input-shape", text.replace("x", ",")))
    if len(shape) not in (0, 3):
        raise UsageError(f"--input-shape takes three positive numbers, channels, height and width, not '{text}'")
    return shape or None


def _option(name: str, default: Any, meta: str, text: str) -> Decorator:
    return click.option(f"--{name}", name, default=default, type=type(default), metavar=meta, help=text)


CAFFE = [
    _option("solver", "", "FILE", "Solver prototxt (train)."),
    _option("model", "", "FILE", "Net prototxt (test, time)."),
    _option("weights", "", "FILE,...", "Models to copy weights from, in this order (train, test, time)."),
    _option("snapshot", "", "FILE", "Solver state to resume from; 'auto': the newest whole one, if any (train)."),
    _option("iterations", 50, "N", "Batches to run (test, time; 50)."),
    _option("gpu", "", "ID,...", "GPUs to use, or all: to train, one worker on each; else the first (the CPU)."),
    _option("phase", "", "TRAIN|TEST", "Phase of the net (time; TRAIN)."),
    _option("level", 0, "N", "Level of the net, for its include and exclude rules."),
    _option("stage", "", "NAME,...", "Stages of the net, for its include and exclude rules."),
    _option("sigint_effect", "stop", "EFFECT", "On SIGINT: stop (after a snapshot), snapshot or none (train)."),
    _option("sighup_effect", "snapshot", "EFFECT", "On SIGHUP: stop (after a snapshot), snapshot or none (train)."),
]

ENGINE: list[Decorator] = [
    click.option(
        "--engine",
        type=click.Choice(["onednn", "numpy"]),
        help="Engine for CPUs (oneDNN, or NumPy where that is missing).",
    ),
    click.option(
        "--math",
        type=click.Choice(["fp32", "tf32", "fp16", "bf16"]),
        default="fp32",
        help="Type of the factors in convolutions and inner products; sums and weights are float32. fp16 and bf16 are "
        "also the types of activations; tf32 and fp16 need a GPU (fp32).",
    ),
    click.option("--no-graph", "graphs", flag_value=False, default=True, help="On GPUs: no CUDA graphs, to debug."),
    click.option(
        "--loss-scale",
        default="",
        metavar="N",
        help="With --math fp16: multiply gradients by N, or adapt N during training (dynamic, the default).",
    ),
    click.option(
        "--fast-nondeterministic",
        "nondeterministic",
        is_flag=True,
        help="On GPUs: allow faster algorithms whose last bits differ from run to run.",
    ),
]

# glog's other flags, which are accepted and have no effect.
_WITHOUT_EFFECT: list[tuple[str, Any]] = [
    ("alsologtostderr", True),
    ("colorlogtostderr", False),
    ("log_backtrace_at", ""),
    ("log_link", ""),
    ("log_prefix", True),
    ("logbuflevel", 0),
    ("logbufsecs", 30),
    ("max_log_size", 1800),
    ("stderrthreshold", 2),
    ("stop_logging_if_full_disk", False),
    ("v", 0),
    ("vmodule", ""),
]


def _silent(name: str, default: Any) -> Decorator:
    kind = {"is_flag": True} if isinstance(default, bool) else {"type": type(default)}
    return click.option(f"--{name}", name, default=default, hidden=True, expose_value=False, **kind)


LOG: list[Decorator] = [
    click.option("--log", default="", metavar="FILE", help="Append the log to FILE as well."),
    click.option("--minloglevel", type=int, metavar="N", help="Lowest level to log: 0 info, 1 warning, 2 error."),
    click.option(
        "--log_dir", "log_dir", default="", metavar="FOLDER", help="Write glog's file of all lines there too."
    ),
    click.option("--logtostderr", is_flag=True, help="Write no file to log_dir."),
    *(_silent(name, default) for name, default in _WITHOUT_EFFECT),
]


def _load_plugins(context: click.Context, param: click.Parameter, modules: tuple[str, ...]) -> None:
    if not context.resilient_parsing:  # as for completion
        from fcaffe import plugins

        plugins.load(modules)


COMMON: list[Decorator] = [
    click.option(
        "--import",
        "imports",
        multiple=True,
        expose_value=False,
        callback=_load_plugins,
        metavar="MODULE",
        help="Import this Python module first, which registers layers, update rules, reductions and the like.",
    ),
    click.option(
        "--traceback", is_flag=True, expose_value=False, help="After an error, show where in fcaffe it arose."
    ),
    click.option("--version", is_flag=True, expose_value=False, help="Print the version."),
]


def with_options(options: Sequence[Decorator], heading: str) -> Decorator:
    """Return a decorator that adds these options to a click command, under this heading of its help."""

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(options):
            function = option(function)
            function.__click_params__[-1].heading = heading  # type: ignore[attr-defined]
        return function

    return decorate


def with_flags(argument: str, kind: Any, options: Sequence[Decorator], heading: str) -> Decorator:
    """Return a decorator that adds options to a click command, one for each field of the dataclass `kind`.

    The command's function gets an instance of `kind` as its `argument`; help shows the options under the heading.
    """

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def with_instance(**values: Any) -> int:
            flags = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            return function(**{argument: flags}, **values)

        return with_options(options, heading)(with_instance)

    return decorate


common_flags = with_options(COMMON, usage.COMMON)


def log_flags(function: Callable[..., int]) -> Callable[..., int]:
    """Add glog's flags and the common ones to a click command, and set up the log before its function runs."""

    @functools.wraps(function)
    def with_log(log: str, minloglevel: int | None, log_dir: str, logtostderr: bool, **values: Any) -> int:
        glog.begin(log, minloglevel, log_dir, logtostderr)
        return function(**values)

    return with_options(LOG, usage.LOG)(common_flags(with_log))


def caffe_flags(*used: str) -> Decorator:
    """Return a decorator that adds Caffe's and glog's flags to a click command.

    The command's function gets Caffe's as `flags`. As in Caffe, each command accepts all of them; a warning names given
    flags that are not `used`.
    """

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def with_warnings(**values: Any) -> int:
            context = click.get_current_context()
            for field in fields(Flags):
                given = context.get_parameter_source(field.name) is click.core.ParameterSource.COMMANDLINE
                if given and field.name not in used:
                    log.warning(f"--{field.name} has no effect on {context.command.name}")
            return function(**values)

        return with_flags("flags", Flags, CAFFE, usage.CAFFE)(log_flags(with_warnings))

    return decorate
