"""Runs a golden case of a single layer and yields its values beside Caffe's.

tests/golden/layers/README.md describes the cases of BVLC Caffe, tests/golden/forks/README.md those of its forks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fcaffe.net import Net, layer_types
from tests.conftest import GOLDEN, make_net
from tests.engine_choice import host

FOLDER = GOLDEN / "layers"


class Value(NamedTuple):
    """One array of a run: ours and Caffe's.

    The kind is "data", "gradient" (of a bottom), "untouched" (the gradient of a bottom to which Caffe writes none) or
    "parameter" (the gradient of one).
    """

    kind: str
    name: str
    ours: Any
    golden: np.ndarray


def golden_cases(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The index entries of all cases whose layer type exists."""
    known = set(layer_types())
    return [case for case in json.loads((folder / "index.json").read_text()) if case["type"] in known]


def replay(case: dict[str, Any], folder: Path = FOLDER) -> Iterator[Value]:
    """Build the case's net and run its steps, forward and backward; every value as soon as it is there.

    Text files that the net reads are written into the working directory.
    """
    with np.load(folder / case["file"]) as file:
        golden = dict(file)
    for name, text in zip(golden.get("file_names", ()), golden.get("file_texts", ()), strict=True):
        Path(str(name)).write_text(str(text))
    net = make_net(str(golden["prototxt"]), str(golden["phase"]), int(golden.get("seed", 0)))
    for prefix in ["", "s2_"][: int(golden["steps"])]:
        step = {key.removeprefix(prefix): value for key, value in golden.items() if key.startswith(prefix)}
        for _ in range(int(golden.get("warm", 0)) if not prefix else 0):
            list(_forward(net, golden, step))
        yield from _forward(net, golden, step)
        if golden["backward"]:
            yield from _backward(net, golden, step)


def _forward(net: Net, golden: dict[str, Any], step: dict[str, Any]) -> Iterator[Value]:
    layer = net.layers[net.layer_names.index(str(golden["layer_name"]))]
    for index, blob in enumerate(layer.blobs):
        if f"param_{index}" in step:
            blob.data[...] = blob.xp.asarray(step[f"param_{index}"])
    for index, name in enumerate(golden["input_names"]):
        blob, values = net.blob(str(name)), step[f"bottom_{index}"]
        blob.reshape(*values.shape)
        blob.data[...] = blob.xp.asarray(values)
    loss = net.forward()
    for index, name in enumerate(golden["top_names"]):
        yield Value("data", f"top {index}", host(net.blob(str(name)).data), step[f"top_{index}"])
    for index, blob in enumerate(layer.blobs):
        if f"param_after_{index}" in step:
            yield Value("data", f"parameter {index} after the pass", host(blob.data), step[f"param_after_{index}"])
    if "loss" in step:
        yield Value("data", "loss", np.float32(loss), step["loss"])
        yield Value("data", "loss weights", np.asarray(layer.loss_weights, np.float32), step["loss_weights"])


def _backward(net: Net, golden: dict[str, Any], step: dict[str, Any]) -> Iterator[Value]:
    layer = net.layers[net.layer_names.index(str(golden["layer_name"]))]
    tops = [net.blob(str(name)) for name in golden["top_names"]]
    bottoms = [net.blob(str(name)) for name in golden["bottom_names"]]
    net.parameters.clear_diffs()
    for index, top in enumerate(tops):
        if f"top_diff_{index}" in step:
            top.diff[...] = top.xp.asarray(step[f"top_diff_{index}"])
    untouched = np.float32(123)
    for bottom in bottoms:
        if bottom not in tops:
            bottom.diff[...] = untouched
    net.backward()
    for index, bottom in enumerate(bottoms):
        if f"bottom_diff_{index}" in step:
            yield Value("gradient", f"gradient of bottom {index}", host(bottom.diff), step[f"bottom_diff_{index}"])
        elif bottom not in tops:
            golden_diff = np.full(bottom.shape, untouched)
            yield Value("untouched", f"gradient of bottom {index}, which has none", host(bottom.diff), golden_diff)
    for index, blob in enumerate(layer.blobs):
        if f"param_diff_{index}" in step:
            yield Value("parameter", f"gradient of parameter {index}", host(blob.diff), step[f"param_diff_{index}"])
