"""`fcaffe summary` shows a net, model or solver; `solver` is a part of it, and `summarize` is Caffe's program."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from google.protobuf import json_format

from fcaffe import log
from fcaffe.cli.flags import OWN, command, flag, numbers_of_shape, phase_number, required, with_flags
from fcaffe.cli.table import bar, print_table, say
from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import ProtoError
from fcaffe.model_files import Model, read_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, read_solver
from fcaffe.proto.binary import file_start, is_text
from fcaffe.proto.text import read_text
from fcaffe.shown import shown
from fcaffe.solvers.learning_rate import learning_rate, warm_up_end
from fcaffe.tools.summary import COLUMNS, Summary, model_to_json, shape_text, total_params
from fcaffe.tools.summary import summarize as summary_of
from fcaffe.tools.target import misfits_of_file, read_target

MODEL_COLUMNS = ("layer", "type", "blobs", "parameters")
SAMPLES = 16
FIRST_OWN_NUMBER = 100000  # of the fields that BVLC Caffe's schema does not have


@dataclass(frozen=True)
class SummaryFlags:
    phase: str = flag("TRAIN|TEST", "Phase of the net (TRAIN).")
    level: int = flag("N", "Level of the net, for its include and exclude rules.", default=0)
    stage: str = flag("NAME,...", "Stages of the net, for its include and exclude rules.")
    input_shape: str = flag("C,H,W", "Shape of the records of a data set that is missing.", "--input-shape")
    as_json: bool = flag(None, "Print JSON.", "--json", default=False)
    target: str | None = flag(
        "NAME|FILE", "Only name the layers that this toolchain does not read, if any.", default=None
    )

    @property
    def stages(self) -> list[str]:
        return self.stage.split(",") if self.stage else []


@command(
    example="summary train_val.prototxt --phase TEST",
    help="Show the layers, shapes, parameters, multiply-adds and memory of the net NET (a prototxt), for one batch. "
    "Its data sets need not exist. NET may also be a model, in any of its forms: what it holds is shown; or a solver, "
    "which is shown as by the command solver.",
)
@click.argument("net")
@with_flags("flags", SummaryFlags, OWN)
def summary(net: str, flags: SummaryFlags) -> int:
    if flags.target:
        return _check(net, flags)
    is_net = is_text(file_start(net))
    if is_net and is_solver(net):
        return show_solver(net, flags.as_json)
    made: Model | Summary
    with log.quiet():
        if is_net:
            shape, phase = numbers_of_shape(flags.input_shape), phase_number(flags.phase)
            made = summary_of(net, phase, flags.level, flags.stages, shape)
        else:
            made = read_model(net)
    if flags.as_json:
        print(json.dumps(made.to_json() if isinstance(made, Summary) else model_to_json(made), indent=2))
    elif isinstance(made, Summary):
        _print(made)
    else:
        _print_model(net, made)
    return 0


def _check(net: str, flags: SummaryFlags) -> int:
    """Print the layers that do not fit --target. Returns 1 if there are any."""
    target = read_target(flags.target or "")
    problems = misfits_of_file(net, target, phase_number(flags.phase or "TEST"), flags.level, flags.stages)
    for problem, layers in problems.items():
        for layer in layers:
            say(f"{layer}: {problem}")
    say(f"{flags.target} takes {', '.join(sorted(target.types))}" if problems else f"{net} fits {flags.target}")
    return 1 if problems else 0


def _print(made: Summary) -> None:
    rows = [layer.cells() for layer in made.layers]
    print_table(f"{made.name or 'net'} ({made.phase})", COLUMNS, rows, numbers_from=3)
    say(f"Parameters      {made.total_params:,}")
    of_channels = f"; {made.channel_macs:,} of them BatchNorm, Scale and Bias" if made.channel_macs else ""
    say(f"Multiply-adds   {made.macs:,} (one batch forward{of_channels})")
    say(f"Memory          {made.memory_bytes:,} bytes (Caffe's 'Memory required for data')")
    if made.memory_bytes > (free := obtainable_bytes(np) or made.memory_bytes):
        say(f"                which do not fit into the {free:,} bytes that this machine has free: lower batch_size")
    types: dict[str, set[str]] = {}
    for layer in made.layers:
        if layer.fork:
            types.setdefault(layer.fork, set()).add(layer.type)
    for index, (fork, names) in enumerate(types.items()):
        say(f"{'' if index else 'Of forks':<16}{', '.join(sorted(names))}: as in {fork}")


def _print_model(path: str, model: Model) -> None:
    rows = []
    for layer in model.layers:
        blobs = [shape_text(blob.shape) for blob in layer.blobs]
        count = sum(math.prod(blob.shape) for blob in layer.blobs)
        rows.append((layer.name, layer.param.type, ", ".join(blobs), f"{count:,}" if count else ""))
    print_table(f"{model.param.name or 'model'} ({path})", MODEL_COLUMNS, rows, numbers_from=3)
    say(f"Layers          {len(model.layers):,}")
    say(f"Parameters      {total_params(model):,}")


@command(
    example="solver solver.prototxt",
    help="Show every field of the solver SOLVER (a prototxt) with upgrades and defaults, and its learning rate over "
    "the iterations.",
)
@click.argument("solver")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def solver(solver: str, as_json: bool) -> int:
    return show_solver(solver, as_json)


def is_solver(path: str) -> bool:
    """Whether a prototxt is a solver's, which has no field of a net."""
    try:
        return bool(read_text(path, pb.SolverParameter).ListFields())
    except ProtoError:
        return False


def show_solver(path: str, as_json: bool) -> int:
    with log.quiet():
        param = read_solver(path)
    fields = solver_fields(param)
    if as_json:
        print(json.dumps(fields, indent=2))
    else:
        curve = rates(param)  # first, since it may refuse the policy
        width = max(map(len, fields))
        for name, value in fields.items():
            given = isinstance(value, list) or param.HasField(name)
            text = value if isinstance(value, str) else json.dumps(value)
            say(f"{name:{width}}  {text}{'' if given else '  (default)'}")
        _print_rates(param, curve)
    return 0


def _print_rates(param: Any, curve: list[tuple[int, float]]) -> None:
    if not curve:
        return
    print()
    say(f"Learning rate ({param.lr_policy}), up to iteration {param.max_iter}:")
    width = max(len("iteration"), len(str(param.max_iter)))
    say(f"{'iteration':>{width}}  {'rate':12}")
    largest = max((rate for _, rate in curve if math.isfinite(rate)), default=0)
    for iteration, rate in curve:
        share = rate / largest if largest > 0 and math.isfinite(rate) else 0
        say(f"{iteration:>{width}}  {log.number(rate):12}  {bar(share)}".rstrip())


def solver_fields(param: Any) -> dict[str, Any]:
    """Field name to value, in the order of the schema, as JSON has it.

    Fields that are not given are there with their default, if they are numbers, booleans or enums, or have one in the
    schema. Of the fields that BVLC Caffe lacks, only given ones are there.
    """
    whole = type(param)()
    for field in param.DESCRIPTOR.fields:
        plain = field.has_default_value or field.cpp_type not in (field.CPPTYPE_STRING, field.CPPTYPE_MESSAGE)
        if plain and field.number < FIRST_OWN_NUMBER and not hasattr(getattr(whole, field.name), "extend"):
            setattr(whole, field.name, field.default_value)
    whole.MergeFrom(param)
    whole.ClearField("solver_type")  # reading a solver turns it into `type`
    found = json_format.MessageToDict(whole, preserving_proto_field_name=True)
    found["random_seed"] = int(found["random_seed"])  # JSON's numbers have no 64 bits
    return {field.name: found[field.name] for field in param.DESCRIPTOR.fields if field.name in found}


def rates(param: Any) -> list[tuple[int, float]]:
    """(iteration, rate) at each change of the rate, or at SAMPLES even distances if it changes more often than that."""
    last, warm = param.max_iter - 1, warm_up_end(param)
    drops = list(_drops(param.stepvalue, warm))
    changes: Iterable[int] = {param.max_iter * k // SAMPLES for k in range(SAMPLES)} | {last}
    if param.lr_policy in ("fixed", "multistep", "multifixed"):
        at = {"multistep": drops, "multifixed": [end + 1 for end in param.stageiter[:-1]]}
        changes = at.get(param.lr_policy, ())
    elif param.lr_policy == "step" and last // max(param.stepsize, 1) < SAMPLES:
        changes = range(0, last + 1, max(param.stepsize, 1))
    rising = {warm * k // SAMPLES for k in range(SAMPLES)}
    iterations = sorted(rising | {warm, *(change for change in changes if change > warm)})
    return [(one, learning_rate(param, one, bisect_right(drops, one))) for one in iterations if one <= last]


def _drops(step_values: Iterable[int], warm: int) -> Iterator[int]:
    """The iterations at which `multistep` lowers the rate. It passes one step value an iteration at most."""
    iteration = warm - 1
    for value in step_values:
        iteration = max(iteration + 1, value)
        yield iteration


@command(
    example="summarize train_val.prototxt",
    help="Show each layer of the net NET (a prototxt), all phases together: its type, (names and multipliers of its "
    "parameters), bottoms -> tops, kernel/stride+pad and outputs. `summary` shows shapes and costs.",
)
@click.argument("words", nargs=-1, metavar="NET")
@click.option("--max-width", "-w", default=30, metavar="N", help="Largest number of characters of a column (30).")
def summarize(words: tuple[str, ...], max_width: int) -> int:
    (path,) = required(words, 1)
    with log.quiet():
        net = read_net(path)
    for line in table_lines(net_rows(net), max_width):
        click.echo(line)  # which leaves the colors to a terminal
    return 0


# Terminal codes: for blobs in the order of their first use, cyclically; for a bottom that is no layer's top; for a top
# that is no layer's bottom.
_COLORS = ["92", "93", "94", "95", "97", "96", "42", "43;30", "100", "44", "103;30", "107;30"]
_UNKNOWN = "41"
_UNREAD = "\033[1;4m"

Row = Sequence[str]


def net_rows(net: Any) -> list[Row]:
    """In colors, for each layer: name, type, parameters and their multipliers, bottoms, an arrow, tops, window."""
    unread: set[str] = set()
    for layer in net.layer:
        unread = (unread | set(layer.top)) - set(layer.bottom)
    color_of: dict[str, str] = {}
    rows: list[Row] = []
    for layer in net.layer:
        tops = []
        for index, top in enumerate(layer.top):
            color = color_of.setdefault(top, _COLORS[len(color_of) % len(_COLORS)])
            text = _UNREAD + shown(top) if top in unread else shown(top)
            if index < len(layer.loss_weight):
                text = f"{layer.loss_weight[index]} * {text}"
            tops.append(f"\033[{color}m{text}\033[0m")
        bottoms = [f"\033[{color_of.get(bottom, _UNKNOWN)}m{shown(bottom)}\033[0m" for bottom in layer.bottom]
        rows.append(
            (
                shown(layer.name),
                shown(_type(layer)),
                _params(layer),
                ", ".join(bottoms),
                "->",
                ", ".join(tops),
                _size(layer),
            )
        )
    return rows


def table_lines(rows: list[Row], max_width: int) -> list[str]:
    """The rows in aligned columns of at most `max_width` characters.

    A longer cell moves the rest of its own line to the right.
    """
    widths = [
        min(max(len(click.unstyle(cell)) + 1 for cell in column), max_width) for column in zip(*rows, strict=True)
    ]
    lines = []
    for row in rows:
        line, end = "", 0
        for cell, width in zip(row, widths, strict=True):
            end += width
            line += cell + " "
            line += " " * (end - len(click.unstyle(line)))
        lines.append(line.rstrip())
    return lines


def _type(layer: Any) -> str:
    return f"{layer.python_param.module}.{layer.python_param.layer}" if layer.type == "Python" else layer.type


def _params(layer: Any) -> str:
    """The names of the parameters, and their multipliers of rate and decay that are not 1."""
    texts = []
    for param in layer.param:
        rate = [f"x{param.lr_mult}"] if param.lr_mult != 1 else []
        decay = [f"Dx{param.decay_mult}"] if param.decay_mult != 1 else []
        texts.append(" ".join([shown(param.name), *rate, *decay] if param.name else [*rate, *decay]))
    return f"({', '.join(texts)})" if any(texts) else ""


def _size(layer: Any) -> str:
    """`kernel/stride+pad outputs/groups`, without strides and groups of 1 and pads of 0."""
    if layer.type in ("Convolution", "Deconvolution") and len(layer.convolution_param.kernel_size) == 1:
        param = layer.convolution_param
        stride, pad = (next(iter(values), default) for values, default in ((param.stride, 1), (param.pad, 0)))
        group = f"/{param.group}" if param.group != 1 else ""
        return f"{_window(param.kernel_size[0], stride, pad)} {param.num_output}{group}"
    if layer.type == "Pooling" and not layer.pooling_param.kernel_size_3d:
        return _window(layer.pooling_param.kernel_size, layer.pooling_param.stride, layer.pooling_param.pad)
    return ""


def _window(kernel: int, stride: int, pad: int) -> str:
    return str(kernel) + (f"/{stride}" if stride != 1 else "") + (f"+{pad}" if pad else "")
