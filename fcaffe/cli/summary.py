"""`fcaffe summary`: shows what a net is made of."""

from __future__ import annotations

import json

import click

from fcaffe import log
from fcaffe.cli.flags import common_flags, phase_number
from fcaffe.cli.table import print_table
from fcaffe.errors import UsageError
from fcaffe.tools.summary import LayerSummary, Summary, summarize

COLUMNS = ("layer", "type", "top shapes", "parameters", "multiply-adds", "bytes of tops")


@click.command(
    help="Show the layers, shapes, parameters, multiply-adds and memory of the net NET (a prototxt), for one batch. "
    "Its data sets need not exist.",
    short_help="show layers, shapes and costs of a net: NET [--phase TRAIN|TEST] [--json]",
)
@click.argument("net", required=False)
@click.option("--phase", default="", metavar="TRAIN|TEST", help="Phase of the net (TRAIN).")
@click.option("--level", default=0, metavar="N", help="Level of the net, for its include and exclude rules.")
@click.option("--stage", default="", metavar="NAME,...", help="Stages of the net, for its include and exclude rules.")
@click.option("--input-shape", default="", metavar="C,H,W", help="Shape of the records of a data set that is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@common_flags
def summary(net: str | None, phase: str, level: int, stage: str, input_shape: str, as_json: bool) -> int:
    if not net:
        raise UsageError("summary needs the prototxt of a net: summary NET")
    stages = stage.split(",") if stage else []
    with log.quiet():
        made = summarize(net, phase_number(phase), level, stages, _shape(input_shape))
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        _print(made)
    return 0


def _shape(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    numbers = text.replace("x", ",").split(",")
    if len(numbers) != 3 or not all(number.isdecimal() and int(number) for number in numbers):
        raise UsageError(f"--input-shape takes three positive numbers, channels, height and width, not '{text}'")
    return tuple(map(int, numbers))


def _print(made: Summary) -> None:
    rows = [_row(layer) for layer in made.layers]
    print_table(f"{made.name or 'net'} ({made.phase})", COLUMNS, rows, numbers_from=3)
    print(f"Parameters      {made.total_params:,}")
    print(f"Multiply-adds   {made.macs:,} (one batch forward)")
    print(f"Memory          {made.memory_bytes:,} bytes (Caffe's 'Memory required for data')")


def _row(layer: LayerSummary) -> tuple[str, ...]:
    texts = [" x ".join(map(str, shape)) or "scalar" for shape in layer.top_shapes]
    shapes = f"{len(texts)} of {texts[0]}" if len(texts) > 1 and len(set(texts)) == 1 else ", ".join(texts)
    numbers = (layer.param_count, layer.macs, layer.top_bytes)
    return (layer.name, layer.type, shapes, *(f"{number:,}" if number else "" for number in numbers))
