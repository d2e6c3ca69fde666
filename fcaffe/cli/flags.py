"""Click commands in gflags' spellings, with groups of flags: Caffe's flags, glog's, and the flags of every command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from fcaffe import log
from fcaffe.cli import glog
from fcaffe.cli.commands import COMMANDS
from fcaffe.cli.gflags import asks_for_help, spell
from fcaffe.errors import UsageError

# The groups of flags, in the order in which help shows them. A command's own groups come after Caffe's.
HEADINGS = CAFFE, OWN, WORKERS, ENGINE, LOG, COMMON = [
    "Caffe's flags",
    "Flags",
    "Several workers",
    "Engine",
    "Log",
    "Any command",
]

IMPORTS = "fcaffe.imports"  # in a context's `meta`: the modules of --import
PHASES = ("TRAIN", "TEST")  # by their numbers in caffe.proto
Decorator = Callable[[Callable[..., int]], Callable[..., int]]


class Way(NamedTuple):
    """A way to run: the number of workers, and whether fcaffe's launcher starts them, on several hosts, elastically."""

    workers: int = 1
    started: bool = False
    hosts: bool = False
    elastic: bool = False
    gpu: bool = False


class Need(NamedTuple):
    """What a flag needs of the way to run to have an effect, and the message where that is missing."""

    is_met: Callable[[Way], bool]
    problem: str


# One command line serves one worker and several, so flags with this need are named in the log and not refused.
SEVERAL = Need(lambda way: way.workers > 1, "")
WATCHED = Need(
    lambda way: way.started or way.workers > 1,
    "is for several workers, and this is one worker: give --workers N, or leave it out",
)
STARTED = Need(
    lambda way: way.started or way.workers == 1,
    "is for workers that fcaffe starts, and another launcher has started these {workers} ranks: leave it out, or start "
    "with --workers N or --hosts without mpiexec or srun",
)
HOSTS = Need(lambda way: way.hosts, "is for jobs on several hosts: give --hosts or --hostfile as well")
ELASTIC = Need(lambda way: way.elastic, "is for elastic jobs: give --elastic MIN:MAX as well")
FIXED = Need(
    lambda way: not way.elastic,
    "does not go with --elastic, which goes on by itself with the hosts that are there: leave one of them out",
)
GPU = Need(lambda way: way.gpu, "is for GPUs: give --gpu 0 as well, or leave it out")
CPU = Need(lambda way: not way.gpu, "is for CPUs: leave it out on a GPU")


def flag(
    metavar: str | list[str] | None,
    text: str,
    *names: str,
    default: Any = "",
    needs: Sequence[Need] = (),
    least: int | None = None,
    **settings: Any,
) -> Any:
    """A field of a dataclass of flags: a click option of these names, or of the field's own, for `options_of`.

    A list as `metavar` has the possible values. An option with a default of True or False has no value. `least` is the
    lowest value. See `check_flags` for `needs`.
    """
    values = {"type": click.Choice(metavar)} if isinstance(metavar, list) else {"metavar": metavar}
    if least is not None:

        def at_least(_: click.Context, option: click.Parameter, value: Any) -> Any:
            if value is not None and not value >= least:
                raise UsageError(f"{option.opts[0]} must be {least} or more, not {value:g}")
            return value

        settings["callback"] = at_least
    settings = {**values, "help": text, "default": default, "is_flag": isinstance(default, bool), **settings}
    return field(default=default, metadata={"names": names, "needs": needs, "settings": settings})


def check_flags(way: Way, *groups: Any) -> None:
    """Raise UsageError if a flag of these dataclasses is given and has no effect in this way to run.

    One line of the log names the flags that need several workers and have one.
    """
    idle = []
    for group in groups:
        for one in fields(group):
            name = next(iter(one.metadata["names"]), f"--{one.name}")
            missing = [need for need in one.metadata["needs"] if not need.is_met(way)]
            if not missing or getattr(group, one.name) == one.default:
                continue
            if missing[0] is not SEVERAL:
                raise UsageError(f"{name} {missing[0].problem.format(workers=way.workers)}")
            idle.append(name)
    if idle:
        log.warning(f"{', '.join(idle)}: no effect with one worker")


def options_of(kind: Any) -> list[Decorator]:
    """The click options of the fields of a dataclass, which `flag` defined."""
    return [
        click.option(*(one.metadata["names"] or (f"--{one.name}",)), one.name, **one.metadata["settings"])
        for one in fields(kind)
    ]


# The names of flags that several commands have, as Caffe's commands and its Python programs spell them.
MODEL, WEIGHTS = ("--model", "--model_def"), ("--weights", "--pretrained_model")
MEAN, SCALE = ("--mean", "--mean_file"), ("--scale", "--input_scale")


@dataclass(frozen=True)
class Flags:
    """The values of Caffe's flags. Each of Caffe's commands accepts all of them, and uses some."""

    solver: str = flag("FILE", "Solver prototxt (train).")
    model: str = flag("FILE", "Net prototxt (test, time).", *MODEL)
    weights: str = flag("FILE,...", "Models to copy weights from, in this order (train, test, time).", *WEIGHTS)
    snapshot: str = flag("FILE", "Solver state to resume from; 'auto': the newest whole one, if any (train).")
    iterations: int = flag("N", "Batches to run (test, time; 50).", default=50, least=1)
    gpu: str = flag("ID,...", "GPUs to use, or all: to train, one worker on each; else the first (the CPU).")
    phase: str = flag("TRAIN|TEST", "Phase of the net (time; TRAIN).")
    level: int = flag("N", "Level of the net, for its include and exclude rules.", default=0)
    stage: str = flag("NAME,...", "Stages of the net, for its include and exclude rules.")
    sigint_effect: str = flag("EFFECT", "On SIGINT: stop (after a snapshot), snapshot or none (train).", default="stop")
    sighup_effect: str = flag(
        "EFFECT", "On SIGHUP: stop (after a snapshot), snapshot or none (train).", default="snapshot"
    )

    @property
    def stages(self) -> list[str]:
        """The stages, split as in Caffe: without --stage there is one, which is empty."""
        return self.stage.split(",")


def phase_number(phase: str) -> int:
    """Return the number of a --phase flag's phase; TRAIN without the flag. Raises UsageError."""
    if phase not in ("", *PHASES):
        raise UsageError(f'phase must be "TRAIN" or "TEST", not "{phase}"')
    return PHASES.index(phase or "TRAIN")


def numbers(flag: str, text: str, least: int = 1, kind: type[Any] = int) -> list[Any]:
    """Return the numbers of a flag, such as "256,256"; none for an empty text. Raises UsageError."""
    try:
        found = [kind(word) for word in text.split(",") if text]
    except ValueError:
        found = [-1]
    if not all(number >= least for number in found):
        raise UsageError(f"{flag} takes {'positive ' * least}numbers with commas between them, not '{text}'")
    return found


def numbers_of_shape(text: str) -> tuple[int, ...] | None:
    """Return the three numbers of an --input-shape flag; None without the flag. Raises UsageError."""
    shape = tuple(numbers("--input-shape", text.replace("x", ",")))
    if len(shape) not in (0, 3):
        raise UsageError(f"--input-shape takes three positive numbers, channels, height and width, not '{text}'")
    return shape or None


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


_LOG_OPTIONS: list[Decorator] = [
    click.option("--log", default="", metavar="FILE", help="Append the log to FILE as well."),
    click.option("--minloglevel", type=int, metavar="N", help="Lowest level to log: 0 info, 1 warning, 2 error."),
    click.option("--log_dir", default="", metavar="FOLDER", help="Write glog's file of all lines there too."),
    click.option("--logtostderr", is_flag=True, help="Write no file to log_dir."),
    *(
        click.option(f"--{name}", default=default, is_flag=isinstance(default, bool), hidden=True, expose_value=False)
        for name, default in _WITHOUT_EFFECT
    ),
]


def _load_plugins(context: click.Context, param: click.Parameter, modules: tuple[str, ...]) -> None:
    from fcaffe import plugins

    context.meta[IMPORTS] = modules
    plugins.load(modules)


_COMMON_OPTIONS: list[Decorator] = [
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


def with_options(options: Sequence[Decorator], heading: str, group: tuple[str, Any] | None = None) -> Decorator:
    """Return a decorator that adds these options to a click command, under this heading of its help.

    With a `group` (argument, dataclass) the command's function gets their values as this one argument.
    """

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(options):
            function = option(function)
            vars(function.__click_params__[-1]).update(heading=heading, group=group)  # type: ignore[attr-defined]
        return function

    return decorate


def with_flags(argument: str, kind: Any, heading: str) -> Decorator:
    """Return a decorator that adds the options of a dataclass of flags, an instance of which is this argument."""
    return with_options(options_of(kind), heading, (argument, kind))


class Command(click.Command):
    """A click command whose help ends with an example, and lists its flags in groups.

    An option's group in help is its `heading`, which `with_options` sets; options without one belong to OWN.
    `file_flag` is the flag that an error proposes for a file name without a flag.
    """

    def __init__(self, *args: Any, example: str = "", file_flag: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example
        self.file_flag = file_flag

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse `args`, in gflags' spellings. The root context's `obj` gets the command's name and click's words."""
        if asks_for_help(args):
            return super().parse_args(context, ["--help"])
        words = spell(args, self.params)
        context.find_root().obj = [self.name, *words]
        context.allow_extra_args = True
        program = context.command_path.split()[0]
        try:
            rest = super().parse_args(context, words)
        except click.MissingParameter as problem:
            assert problem.param is not None
            missing = problem.param.metavar or str(problem.param.name).upper()
            raise click.UsageError(f"{self.name} needs {missing}, such as: {program} {self.example}") from None
        if rest:
            flag = f"; did you mean {self.file_flag} {rest[0]}?" if self.file_flag else ""
            raise click.UsageError(
                f"{self.name} cannot use '{rest[0]}'{flag} ({program} help {self.name} shows its flags)"
            )
        return rest

    def invoke(self, context: click.Context) -> Any:
        """Set up the log, warn of flags without effect, and call the function with a dataclass for each group."""
        values = dict(context.params)
        glog.begin({name: values.pop(name) for name in glog.FLAGS})
        for param in self.params:
            given = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
            if given and getattr(param, "without_effect", False):
                log.warning(f"--{param.name} has no effect on {self.name}")
        for argument, kind in {group for param in self.params if (group := getattr(param, "group", None))}:
            values[argument] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        assert self.callback is not None
        return context.invoke(self.callback, **values)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        given = dict.fromkeys(getattr(param, "heading", OWN) for param in self.params)
        at = HEADINGS.index(OWN) + 1
        for heading in (*HEADINGS[:at], *(own for own in given if own not in HEADINGS), *HEADINGS[at:]):
            shown = [
                param
                for param in self.params
                if getattr(param, "heading", OWN) == heading and not getattr(param, "without_effect", False)
            ]
            records = [record for param in shown if (record := param.get_help_record(context))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            program = context.command_path.split()[0]
            with formatter.section("Example"):
                formatter.write_text(f"{program} {self.example}")


def required(words: Sequence[str], least: int, most: int | None = None) -> Sequence[str]:
    """Return `words` if there are `least` to `most` of them (exactly `least` without `most`).

    Otherwise print the command's help and exit with 1, as Caffe's tools do.
    """
    if least <= len(words) <= (most or least):
        return words
    context = click.get_current_context()
    click.echo(context.get_help())
    context.exit(1)


def command(
    example: str, help: str, file_flag: str = "", caffe: str = "", name: str = ""
) -> Callable[[Callable[..., int]], click.Command]:
    """Return a decorator that makes a function a command, with glog's flags beside its own; see `Command`.

    As in Caffe, a command that uses some of Caffe's flags accepts all of them, and its function gets them as `flags`.
    `caffe` names the flags that it uses, separated by blanks; a warning names other given ones.
    """

    def decorate(function: Callable[..., int]) -> click.Command:
        own = function.__name__
        called = name or (own if own in COMMANDS else own.replace("_", "-"))
        function = with_options(_LOG_OPTIONS, LOG)(with_options(_COMMON_OPTIONS, COMMON)(function))
        if caffe:
            function = with_flags("flags", Flags, CAFFE)(function)
            unused = {one.name for one in fields(Flags)}.difference(caffe.split())
            for param in function.__click_params__:  # type: ignore[attr-defined]
                param.without_effect = param.name in unused
        return click.command(called, Command, example=example, help=help, file_flag=file_flag)(function)

    return decorate
