"""`fcaffe summary` shows the layers of a net or the contents of a model; `fcaffe summarize` a table as Caffe's."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.flags import command, numbers_of_shape, phase_number, required
from fcaffe.cli.table import print_table, say
from fcaffe.engines.memory import obtainable_bytes
from fcaffe.errors import UsageError
from fcaffe.model_files import Model, read_model
from fcaffe.proto import read_net
from fcaffe.proto.binary import file_start, is_text
from fcaffe.shown import shown
from fcaffe.tools.summary import COLUMNS, OF_WORKERS, Summary, model_to_json, shape_text, total_params
from fcaffe.tools.summary import summarize as summary_of
from fcaffe.tools.target import misfits_of_file, read_target

MODEL_COLUMNS = ("layer", "type", "blobs", "parameters")


@command(
    example="summary train_val.prototxt --phase TEST",
    help="Show the layers, shapes, parameters, multiply-adds and memory of the net NET (a prototxt), for one batch. "
    "Its data sets need not exist. NET may also be a model, in any of its forms: what it holds is shown.",
)
@click.argument("net")
@click.option("--phase", default="", metavar="TRAIN|TEST", help="Phase of the net (TRAIN).")
@click.option("--level", default=0, metavar="N", help="Level of the net, for its include and exclude rules.")
@click.option("--stage", default="", metavar="NAME,...", help="Stages of the net, for its include and exclude rules.")
@click.option("--input-shape", default="", metavar="C,H,W", help="Shape of the records of a data set that is missing.")
@click.option("--workers", default=1, metavar="N", help="Show the share of the first of N workers, and what they send.")
@click.option(
    "--parallel", default="data", type=click.Choice(["data", "hybrid"]), help="As --parallel of train (data)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--target", metavar="NAME|FILE", help="Only name the layers that this toolchain does not read, if any.")
def summary(
    net: str,
    phase: str,
    level: int,
    stage: str,
    input_shape: str,
    workers: int,
    parallel: str,
    as_json: bool,
    target: str | None,
) -> int:
    stages = stage.split(",") if stage else []
    if workers < 1:
        raise UsageError(f"--workers {workers}: the number of workers must be at least 1")
    if target:
        return _check(net, target, phase_number(phase or "TEST"), level, stages)
    if not is_text(file_start(net)):
        with log.quiet():
            model = read_model(net)
        if as_json:
            print(json.dumps(model_to_json(model), indent=2))
        else:
            _print_model(net, model)
        return 0
    with log.quiet():
        shape, split_below = numbers_of_shape(input_shape), float(parallel == "hybrid")
        made = summary_of(net, phase_number(phase), level, stages, shape, workers, split_below)
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        _print(made)
    return 0


def _check(net: str, name: str, phase: int, level: int, stages: Sequence[str]) -> int:
    """Print the layers that do not fit a target. Returns 1 if there are any."""
    target = read_target(name)
    problems = misfits_of_file(net, target, phase, level, stages)
    for problem, layers in problems.items():
        for layer in layers:
            say(f"{layer}: {problem}")
    say(f"{name} takes {', '.join(sorted(target.types))}" if problems else f"{net} fits {name}")
    return 1 if problems else 0


def _print(made: Summary) -> None:
    columns = COLUMNS + OF_WORKERS if made.workers > 1 else COLUMNS
    rows = [layer.cells()[: len(columns)] for layer in made.layers]
    print_table(f"{made.name or 'net'} ({made.phase})", columns, rows, numbers_from=3)
    say(f"Parameters      {made.total_params:,}")
    of_channels = f"; {made.channel_macs:,} of them BatchNorm, Scale and Bias" if made.channel_macs else ""
    say(f"Multiply-adds   {made.macs:,} (one batch forward{of_channels})")
    say(f"Memory          {made.memory_bytes:,} bytes (Caffe's 'Memory required for data')")
    if made.memory_bytes > (free := obtainable_bytes(np) or made.memory_bytes):
        say(f"                which do not fit into the {free:,} bytes that this machine has free: lower batch_size")
    if made.workers > 1:
        blobs, gradients = made.bytes_sent
        say(f"Sent            {gradients:,} bytes for gradients, {blobs:,} for blobs (each of {made.workers} workers)")
        if made.own_params:
            say(f"Split           {made.own_params:,} parameters that this worker alone has")
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
