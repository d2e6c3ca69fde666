from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe.engines import cpu_engine
from fcaffe.errors import NetError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import new_net, read_net_for
from fcaffe.tools.summary import summarize
from tests.conftest import GOLDEN

ROOT = Path(__file__).resolve().parents[2]

NET = """
name: "pair"
layer {{ name: "data" type: "Data" top: "data" top: "label"
  {transform} data_param {{ source: "nowhere" batch_size: 4 backend: LMDB }} }}
layer {{ name: "a" type: "InnerProduct" bottom: "data" top: "a" param {{ name: "w" }} param {{ name: "b" }}
  inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "b" type: "InnerProduct" bottom: "data" top: "b" param {{ name: "w" }} param {{ name: "b" }}
  inner_product_param {{ num_output: 5 weight_filler {{ type: "gaussian" }} }} }}
layer {{ name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "loss" }}
layer {{ name: "quiet" type: "Silence" bottom: "label" }}
"""


@pytest.fixture
def net(tmp_path: Path) -> Callable[[str], str]:
    def write(transform: str = "") -> str:
        path = tmp_path / "train_val.prototxt"
        path.write_text(NET.format(transform=transform))
        return str(path)

    return write


def test_sums_and_shapes(net: Callable[[str], str]) -> None:
    made = summarize(net("transform_param { crop_size: 6 }")).to_json()
    assert list(made) == ["name", "phase", "layers", "blobs", "params", "total_params", "macs", "memory_bytes"]
    assert (made["name"], made["phase"]) == ("pair", "TRAIN")
    assert made["layers"][0] == {"name": "data", "type": "Data", "bottoms": [], "tops": ["data", "label"]}
    assert made["layers"][1]["name"] == "data_data_0_split"
    assert made["layers"][2]["bottoms"] == ["data_data_0_split_0"]
    assert made["blobs"]["data"] == [4, 3, 6, 6] and made["blobs"]["label"] == [4] and made["blobs"]["loss"] == []
    assert made["params"] == {"a": [[5, 108], [5]], "b": [[5, 108], [5]]}
    assert made["total_params"] == 545, "what is shared counts once"
    assert made["macs"] == 2 * 4 * 5 * 108
    assert made["memory_bytes"] == 4 * (432 + 4 + 2 * 432 + 2 * 20 + 1)
    json.dumps(made)


@pytest.mark.parametrize(
    ("transform", "shape", "expected"),
    [
        ("transform_param { crop_size: 6 }", None, [4, 3, 6, 6]),
        ("transform_param { crop_size: 6 mean_value: 9 }", None, [4, 1, 6, 6]),
        ("transform_param { crop_size: 6 }", (2, 3, 4), [4, 2, 3, 4]),
    ],
)
def test_shape_of_records_that_do_not_exist(
    net: Callable[[str], str], transform: str, shape: tuple[int, ...] | None, expected: list[int]
) -> None:
    assert summarize(net(transform), input_shape=shape).to_json()["blobs"]["data"] == expected


def test_shape_of_records_from_the_deployed_net(net: Callable[[str], str], tmp_path: Path) -> None:
    path = net("")
    with pytest.raises(NetError, match=r'layer "data": the shape .* unknown, since nowhere .* --input-shape C,H,W'):
        summarize(path)
    deploy = 'layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 7 dim: 8 } } }'
    (tmp_path / "deploy.prototxt").write_text(deploy)
    assert summarize(path).to_json()["blobs"]["data"] == [4, 2, 7, 8]


def test_records_that_exist_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "data" type: "Data" top: "data" '
        f'data_param {{ source: "{GOLDEN}/interop/gray_lmdb" batch_size: 3 backend: LMDB }} }}'
    )
    assert summarize(str(path)).to_json()["blobs"]["data"][0] == 3


def test_it_is_the_net_that_would_run() -> None:
    """Shapes, memory and parameters of a net with a bit of everything."""
    path = str(ROOT / "models" / "squeezenet_v1.1" / "deploy.prototxt")
    made, net = summarize(path, pb.TEST), new_net(read_net_for(path, pb.TEST), cpu_engine(), inference=False)
    assert made.memory_bytes == net.memory_bytes and made.total_params == net.parameters.count
    assert [layer.name for layer in made.layers] == net.layer_names
    assert [layer.top_shapes for layer in made.layers] == [[top.shape for top in node.tops] for node in net.nodes]


@pytest.mark.parametrize("model", sorted(path.parent.name for path in ROOT.glob("models/*/deploy.prototxt")))
def test_models_have_the_parameters_and_costs_that_their_readme_says(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    made = summarize(f"models/{model}/deploy.prototxt", pb.TEST)
    text = (ROOT / "models" / "readme.md").read_text()
    row = re.search(rf"^\| \[{re.escape(model)}\]\S+ \| ([\d,]+) \| ([\d.]+) ([MG]) \|", text, re.MULTILINE)
    assert row is not None
    assert made.total_params == int(row[1].replace(",", ""))
    assert made.macs == pytest.approx(float(row[2]) * {"M": 1e6, "G": 1e9}[row[3]], rel=0.02)
    assert summarize(f"models/{model}/train_val.prototxt", pb.TRAIN).total_params >= made.total_params


CHANNELS = """
layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 3 dim: 4 dim: 5 }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {{ num_output: 6 kernel_size: 1 }} }}
layer {{ name: "norm" type: "BatchNorm" bottom: "y" top: "y" {norm} }}
layer {{ name: "scale" type: "Scale" bottom: "y" top: "z" scale_param {{ bias_term: true }} }}
layer {{ name: "bias" type: "Bias" bottom: "z" top: "z" }}
layer {{ name: "relu" type: "ReLU" bottom: "z" top: "z" }}
"""


@pytest.mark.parametrize(
    ("phase", "norm", "each"),
    [
        (pb.TEST, "", 1),
        (pb.TRAIN, "", 3),
        (pb.TRAIN, "batch_norm_param { use_global_stats: true }", 1),
    ],
)
def test_multiply_adds_of_channels(phase: int, norm: str, each: int, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(CHANNELS.format(norm=norm))
    made, values = summarize(str(path), phase), 2 * 6 * 4 * 5
    assert {layer.name: layer.macs for layer in made.layers} == {
        "in": 0, "conv": 3 * values, "norm": each * values, "scale": values, "bias": values, "relu": 0,
    }  # fmt: skip
    assert (made.macs, made.channel_macs) == ((5 + each) * values, (2 + each) * values)


def test_it_takes_no_memory_for_parameters() -> None:
    tracemalloc.start()
    try:
        summarize(str(ROOT / "models" / "vgg16" / "deploy.prototxt"))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
