"""`fcaffe convert`, and `fcaffe summary` of what it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.conftest import GOLDEN

pytest.importorskip("h5py")

INTEROP = GOLDEN / "interop"
MODEL = INTEROP / "model_iter_8.caffemodel"
pytestmark = pytest.mark.usefixtures("in_a_folder")


def test_there_and_back(run: Run) -> None:
    for source, target in [(str(MODEL), "x.h5"), ("x.h5", "x.npz"), ("x.npz", "back.caffemodel")]:
        made = run("convert", source, target)
        assert (made.code, made.out) == (0, f"{target}: model from {source}\n")
    assert Path("back.caffemodel").read_bytes() == MODEL.read_bytes()


def test_flags_stand_anywhere(run: Run) -> None:
    assert run("convert", "--to", "nvidia", str(MODEL), "nv.caffemodel").code == 0
    assert run("convert", "nv.caffemodel", "-to=bvlc", "x.caffemodel").code == 0
    assert Path("x.caffemodel").read_bytes() == MODEL.read_bytes() != Path("nv.caffemodel").read_bytes()
    hdf5 = str(INTEROP / "modelh_iter_8.caffemodel.h5")
    assert run("convert", hdf5, "y.caffemodel", "-net", str(INTEROP / "net.prototxt")).code == 0


def test_an_unknown_form(run: Run) -> None:
    result = run("convert", str(MODEL), "x.caffemodel", "--to", "intel")
    assert result.code == 1 and "'intel' is not one of 'bvlc', 'nvidia'" in result.err
    assert "written to a file that ends in .caffemodel or .h5 or" in run("convert", str(MODEL), "x.zip").fatal


@pytest.mark.parametrize("ending", [".caffemodel", ".h5", ".npz", ".safetensors"])
def test_summary_of_a_model(ending: str, run: Run) -> None:
    run("convert", str(MODEL), f"x{ending}")
    found = json.loads(run("summary", f"x{ending}", "--json").out)
    assert (found["name"], found["total_params"], found["bytes"]) == ("interop", 771, 4 * (771 + 650))
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert list(layers)[:3] == ["data", "conv", "bn"] and layers["pool_pool_0_split"]["type"] == "Split"
    assert layers["conv"] == {
        "name": "conv",
        "type": "Convolution",
        "blobs": [[4, 1, 5, 5], [4]],
        "dtypes": ["float32", "float32"],
        "diffs": False,
    }
    assert found["params"]["ip_b"] == [[10, 64], [10]]
    text = run("summary", f"x{ending}").out
    assert text.startswith(f"interop (x{ending})\n")
    assert "ip_a               InnerProduct     10 x 64, 10              650\n" in text
    assert text.endswith("Layers          11\nParameters      771\n")


def test_summary_of_a_model_of_caffes_in_hdf5(run: Run) -> None:
    found = json.loads(run("summary", str(INTEROP / "modelh_iter_8.caffemodel.h5"), "--json").out)
    assert found["total_params"] == 771
    assert all(layer["diffs"] for layer in found["layers"] if layer["blobs"])


def test_summary_of_something_else(run: Run) -> None:
    result = run("summary", str(INTEROP / "model_iter_8.solverstate"))
    assert "is a solver state (.solverstate), not a model" in result.fatal
