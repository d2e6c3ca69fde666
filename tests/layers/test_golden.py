"""Single layers against BVLC Caffe: inputs, parameters, outputs and gradients (see tests/golden/layers/README.md)."""

import json

import numpy as np
import pytest

from fcaffe.net import layer_types
from tests.conftest import GOLDEN, make_net
from tests.golden_values import assert_close, assert_same

FOLDER = GOLDEN / "layers"
CASES = [case for case in json.loads((FOLDER / "index.json").read_text()) if case["type"] in layer_types()]

# Pure data movement: not a bit of difference.
EXACT = {"Concat", "Flatten", "Input", "Reshape", "Silence", "Slice", "Split"}


@pytest.mark.parametrize("case", CASES, ids=[case["file"].removesuffix(".npz") for case in CASES])
def test_layer(case):
    with np.load(FOLDER / case["file"]) as file:
        golden = dict(file)
    net = make_net(str(golden["prototxt"]), str(golden["phase"]), int(golden.get("seed", 0)))
    compare = assert_same if case["type"] in EXACT else assert_close
    with np.errstate(all="ignore"):
        for prefix in ["", "s2_"][: int(golden["steps"])]:
            step = {key.removeprefix(prefix): value for key, value in golden.items() if key.startswith(prefix)}
            replay(net, golden, step, compare)


def replay(net, golden, step, compare):
    """One step: write inputs and parameters, run forward and backward, compare everything that Caffe left."""
    layer = net.layers[net.layer_names.index(str(golden["layer_name"]))]
    for index, blob in enumerate(layer.blobs):
        if f"param_{index}" in step:
            blob.data[...] = step[f"param_{index}"]
    for index, name in enumerate(golden["input_names"]):
        blob, values = net.blob(str(name)), step[f"bottom_{index}"]
        blob.reshape(*values.shape)
        blob.data[...] = values

    loss = net.forward()
    tops = [net.blob(str(name)) for name in golden["top_names"]]
    for index, top in enumerate(tops):
        expected = step[f"top_{index}"]
        assert top.shape == expected.shape
        compare(top.data, expected, f"top {index}")
    for index, blob in enumerate(layer.blobs):
        if f"param_after_{index}" in step:
            compare(blob.data, step[f"param_after_{index}"], f"parameter {index} after the pass")
    if "loss" in step:
        assert_close(loss, step["loss"], "loss")
        np.testing.assert_array_equal(layer.loss_weights, step["loss_weights"])

    if not golden["backward"]:
        return
    net.parameters.clear_diffs()
    for index, top in enumerate(tops):
        if f"top_diff_{index}" in step:
            top.diff[...] = step[f"top_diff_{index}"]
    bottoms = [net.blob(str(name)) for name in golden["bottom_names"]]
    in_place = [blob for blob in bottoms if blob in tops]
    for blob in bottoms:
        if blob not in in_place:
            blob.diff[...] = 123
    net.backward()
    for index, bottom in enumerate(bottoms):
        if f"bottom_diff_{index}" in step:
            compare(bottom.diff, step[f"bottom_diff_{index}"], f"gradient of bottom {index}")
        elif bottom not in in_place:
            assert (bottom.diff == 123).all(), f"a gradient was written to bottom {index}"
    for index, blob in enumerate(layer.blobs):
        if f"param_diff_{index}" in step:
            compare(blob.diff, step[f"param_diff_{index}"], f"gradient of parameter {index}")
