"""`fcaffe summary`: shows the layers of a net, or the contents of a model file."""

from __future__ import annotations

import json
import math

import click

from fcaffe import log
from fcaffe.cli.flags import common_flags, numbers_of_shape, phase_number
from fcaffe.cli.table import print_table
from fcaffe.cli.usage import Command
from fcaffe.model_files import Model, read_model
from fcaffe.proto import file_start, is_text
from fcaffe.tools.summary import COLUMNS, Summary, model_to_json, shape_text, summarize, total_params

MODEL_COLUMNS = ("layer", "type", "blobs", "parameters")


@click.command(
    cls=Command,
    example="summary train_val.prototxt --phase TEST",
    help="Show the layers, shapes, parameters, multiply-adds and memory of the net NET (a prototxt), for one batch. "
    "Its data sets need not exist. NET may also be a model, in any of its forms: what it holds is shown.",
)
@click.argument("net")
@click.option("--phase", default="", metavar="TRAIN|TEST", help="Phase of the net (TRAIN).")
@click.option("--level", default=0, metavar="N", help="Level of the net, for its include and exclude rules.")
@click.option("--stage", default="", metavar="NAME,...", help="Stages of the net, for its include and exclude rules.")
@click.option("--input-shape", default="", metavar="C,H,W", help="Shape of the records of a data set that is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@common_flags
def summary(net: str, phase: str, level: int, stage: str, input_shape: str, as_json: bool) -> int:
    if not is_text(file_start(net)):
        with log.quiet():
            model = read_model(net)
        if as_json:
            print(json.dumps(model_to_json(model), indent=2))
        else:
            _print_model(net, model)
        return 0
    stages = stage.split(",") if stage else []
    with log.quiet():
        made = summarize(net, phase_number(phase), level, stages, numbers_of_shape(input_shape))
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        _print(made)
    return 0


def _print(made: Summary) -> None:
    rows = [layer.cells() for layer in made.layers]
    print_table(f"{made.name or 'net'} ({made.phase})", COLUMNS, rows, numbers_from=3)
    print(f"Parameters      {made.total_params:,}")
    of_channels = f"; {made.channel_macs:,} of them BatchNorm, Scale and Bias" if made.channel_macs else ""
    print(f"Multiply-adds   {made.macs:,} (one batch forward{of_channels})")
    print(f"Memory          {made.memory_bytes:,} bytes (Caffe's 'Memory required for data')")


def _print_model(path: str, model: Model) -> None:
    rows = []
    for layer in model.layers:
        blobs = [shape_text(blob.shape) for blob in layer.blobs]
        count = sum(math.prod(blob.shape) for blob in layer.blobs)
        rows.append((layer.name, layer.param.type, ", ".join(blobs), f"{count:,}" if count else ""))
    print_table(f"{model.param.name or 'model'} ({path})", MODEL_COLUMNS, rows, numbers_from=3)
    print(f"Layers          {len(model.layers):,}")
    print(f"Parameters      {total_params(model):,}")
