"""Layers of detection nets as ONNX files, against SSD's values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import LayerError
from tests.conftest import GOLDEN, make_net
from tests.golden_values import assert_close

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fcaffe.onnx.check import run_onnx
from fcaffe.onnx.library import OPSETS
from fcaffe.onnx.writing.export import to_onnx, write_onnx

FOLDER = GOLDEN / "forks"
CASES = {
    case["file"].removesuffix(".npz").removeprefix("layers/"): case
    for case in json.loads((FOLDER / "index.json").read_text())
    if case["type"] in ("PriorBox", "DetectionOutput")
}
REFUSED = {
    "DetectionOutput/eta": "the threshold of NonMaxSuppression is fixed",
    "DetectionOutput/own_locations": "one set of boxes for all classes",
    "DetectionOutput/own_locations_no_background": "one set of boxes for all classes",
}
ANOTHER_ORDER = {"DetectionOutput/inverted"}  # of corners, which NonMaxSuppression corrects


@pytest.mark.parametrize("opset", [OPSETS[0], OPSETS[-1]])
@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED.keys() - ANOTHER_ORDER))
def test_values(name: str, opset: int, tmp_path: Path) -> None:
    golden = np.load(FOLDER / CASES[name]["file"])
    net = make_net(str(golden["prototxt"]), "TEST")
    inputs = {}
    for index, blob in enumerate(map(str, golden["input_names"])):
        inputs[blob] = golden[f"bottom_{index}"].reshape(net.blob(blob).shape)
    write_onnx(tmp_path / "net.onnx", to_onnx(net, opset=opset))
    (values,) = run_onnx(tmp_path / "net.onnx", inputs).values()
    assert_close(values, golden["top_0"], name)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    golden = np.load(FOLDER / CASES[name]["file"])
    with pytest.raises(LayerError, match=f"{REFUSED[name]}.*cut the net before it"):
        to_onnx(make_net(str(golden["prototxt"]), "TEST"))
