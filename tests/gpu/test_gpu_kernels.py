"""The GPU's operators against plain ones, in each precision, at sizes that nets have, with every output poisoned.

A layer stands between two convolutions that change nothing, since those take and give blobs of 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines import Engine, NumpyEngine
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.engine_choice import host

pytestmark = pytest.mark.gpu

# Of the largest value. Rounding to 16 bits is 2^-9 (bf16) and 2^-12 (fp16) of each value, before and after a layer.
TOLERANCES = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1.5e-2, "fp16": 2e-3}
# What factors are rounded to; TF32 has all values of bfloat16 and more.
FACTORS = {"fp32": np.float32, "tf32": ml_dtypes.bfloat16, "bf16": ml_dtypes.bfloat16, "fp16": np.float16}


@dataclass
class Case:
    """A layer by its prototxt, the shapes of its bottoms, and the channels of its top."""

    text: str
    bottoms: tuple[tuple[int, ...], ...]
    channels: int

    def __str__(self) -> str:
        return f"{self.text.replace(' ', '')}-{'x'.join(map(str, self.bottoms[0]))}"


WIDE, NARROW = (4, 64, 27, 27), (3, 20, 13, 11)


def convolution(outputs: int, more: str) -> str:
    filler = 'weight_filler { type: "gaussian" std: 0.1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "Convolution" convolution_param {{ num_output: {outputs} {more} {filler} }}'


def pooling(more: str) -> str:
    return f'type: "Pooling" pooling_param {{ {more} }}'


CASES = [
    Case(convolution(96, "kernel_size: 3 pad: 1"), (WIDE,), 96),
    Case(convolution(32, "kernel_size: 1"), (WIDE,), 32),
    Case(convolution(64, "kernel_size: 5 pad: 2 group: 2"), (WIDE,), 64),
    Case(convolution(64, "kernel_size: 7 stride: 2 pad: 3"), ((4, 3, 56, 56),), 64),
    Case(convolution(64, "kernel_size: 3 pad: 1 stride: 2 bias_term: false"), (WIDE,), 64),
    Case(convolution(50, "kernel_size: 5"), (NARROW,), 50),
    Case(convolution(24, "kernel_size: 3 dilation: 2 pad: 2"), (NARROW,), 24),
    Case(convolution(24, "kernel_size: 4 stride: 2 pad: 1").replace('"Conv', '"Deconv'), (NARROW,), 24),
    Case(pooling("kernel_size: 3 stride: 2"), (WIDE,), 64),
    Case(pooling("kernel_size: 3 stride: 1 pad: 1"), (WIDE,), 64),
    Case(pooling("kernel_size: 2 stride: 2"), (NARROW,), 20),
    Case(pooling("pool: AVE kernel_size: 3 stride: 2 pad: 1"), (NARROW,), 20),
    Case(pooling("pool: AVE global_pooling: true"), (WIDE,), 64),
    Case(pooling("pool: AVE kernel_size: 5 stride: 3"), (WIDE,), 64),
    Case('type: "LRN"', (WIDE,), 64),
    Case('type: "LRN" lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 }', (NARROW,), 20),
    Case('type: "LRN" lrn_param { local_size: 3 norm_region: WITHIN_CHANNEL }', (NARROW,), 20),
    Case('type: "BatchNorm"', (WIDE,), 64),
    Case('type: "BatchNorm"', (NARROW,), 20),
    Case('type: "Scale" scale_param { bias_term: true filler { type: "gaussian" std: 1 } }', (WIDE,), 64),
    Case('type: "Bias" bias_param { filler { type: "gaussian" std: 1 } }', (NARROW,), 20),
    Case('type: "ReLU"', (WIDE,), 64),
    Case('type: "ReLU" relu_param { negative_slope: 0.1 }', (NARROW,), 20),
    Case('type: "PReLU"', (NARROW,), 20),
    Case('type: "ELU"', (NARROW,), 20),
    Case('type: "Sigmoid"', (NARROW,), 20),
    Case('type: "TanH"', (NARROW,), 20),
    Case('type: "Dropout"', (WIDE,), 64),
    Case('type: "Dropout" dropout_param { dropout_ratio: 0.3 }', (NARROW,), 20),
    Case('type: "Softmax"', (NARROW,), 20),
    Case('type: "Concat"', (WIDE, (4, 24, 27, 27), WIDE), 152),
    Case('type: "Concat"', (NARROW, (3, 7, 13, 11)), 27),
    Case('type: "Eltwise"', (WIDE, WIDE), 64),
    Case('type: "Eltwise" eltwise_param { coeff: 1 coeff: -0.5 coeff: 2 }', (NARROW, NARROW, NARROW), 20),
    Case('type: "Eltwise" eltwise_param { operation: MAX }', (NARROW, NARROW), 20),
    Case('type: "Eltwise" eltwise_param { operation: PROD }', (NARROW, NARROW), 20),
]
FULLY_CONNECTED = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 32 dim: 16 dim: 6 dim: 6 }} }} }}
layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: 32 }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param {{ num_output: 70 weight_filler {{ type: "xavier" }} bias_filler {{ type: "gaussian" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "ip" top: "ip" }}
layer {{ name: "ip2" type: "InnerProduct" bottom: "ip" top: "ip2" inner_product_param {{
  num_output: 33 {} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }}
force_backward: true
"""


def build(engine: Engine, text: str) -> Net:
    param = parse_text(text, pb.NetParameter)
    param.state.phase = pb.TRAIN
    return Net(param, Context(engine, CaffeRandom(1), noise="counter", seed=1))


def between_convolutions(case: Case) -> str:
    """Blobs x0, ... go through a convolution to a0, ...; the layer makes y of them; a convolution makes that z."""
    lines = []
    for index, shape in enumerate(case.bottoms):
        dims = " ".join(f"dim: {dim}" for dim in shape)
        lines.append(f'layer {{ name: "x{index}" type: "Input" top: "x{index}" input_param {{ shape {{ {dims} }} }} }}')
        lines.append(_same(f"in{index}", f"x{index}", f"a{index}", shape[1]))
    bottoms = " ".join(f'bottom: "a{index}"' for index in range(len(case.bottoms)))
    lines.append(f'layer {{ name: "it" {bottoms} top: "y" {case.text} }}')
    lines.append(_same("out", "y", "z", case.channels))
    return "\n".join([*lines, "force_backward: true"])


def _same(name: str, bottom: str, top: str, channels: int) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{top}" '
        f"convolution_param {{ num_output: {channels} kernel_size: 1 bias_term: false }} }}"
    )


def rounded(shape: tuple[int, ...], seed: int, dtype: type) -> np.ndarray:
    """Random values that have few enough bits for the factors."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return values.astype(dtype).astype(np.float32)


def pass_through(engine: Engine, case: Case, dtype: type) -> dict[str, np.ndarray]:
    """Forward and backward; everything but the convolutions around the layer."""
    net = build(engine, between_convolutions(case))
    xp = engine.xp
    layer = net.layers[net.layer_names.index("it")]
    for name, around in zip(net.layer_names, net.layers, strict=True):
        if name.startswith("in") or name == "out":
            blob = around.blobs[0]
            blob.data[...] = xp.asarray(np.eye(blob.shape[0], dtype=np.float32).reshape(blob.shape))
    for index, blob in enumerate(layer.blobs):
        blob.data[...] = xp.asarray(rounded(blob.shape, 20 + index, dtype) ** 2)
    inner = [net.blob(name) for name in net.blob_names if name[0] in "ayz"]
    for blob in inner:
        blob.data[...] = np.nan
    inputs = [net.blob(f"x{index}") for index in range(len(case.bottoms))]
    for index, blob in enumerate(inputs):
        blob.data[...] = xp.asarray(rounded(blob.shape, index, dtype))
    net.forward()
    found = {"top": host(net.blob("z").data)}
    net.parameters.clear_diffs()
    for blob in (*inner, *inputs):
        blob.diff[...] = np.nan
    net.blob("z").diff[...] = xp.asarray(rounded(net.blob("z").shape, 10, dtype))
    net.backward()
    found |= {f"gradient of bottom {index}": host(blob.diff) for index, blob in enumerate(inputs)}
    found |= {f"gradient of parameter {index}": host(blob.diff) for index, blob in enumerate(layer.blobs)}
    return found


def assert_near(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], tolerance: float) -> None:
    for name, expected in theirs.items():
        assert np.isfinite(ours[name]).all(), f"{name}: something was not written"
        largest = np.abs(expected).max()
        difference = np.abs(ours[name].astype(np.float64) - expected).max()
        assert difference <= tolerance * largest, f"{name}: differs by {difference / largest:g} of the largest value"


@pytest.mark.parametrize("math", list(TOLERANCES))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer(case: Case, math: str, common_engine: Callable[[str], Engine]) -> None:
    dtype = FACTORS[math]
    assert_near(
        pass_through(common_engine(math), case, dtype), pass_through(NumpyEngine(), case, dtype), TOLERANCES[math]
    )


@pytest.mark.parametrize("math", list(TOLERANCES))
@pytest.mark.parametrize("transpose", [False, True])
def test_fully_connected(transpose: bool, math: str, common_engine: Callable[[str], Engine]) -> None:
    found = []
    for one in (common_engine(math), NumpyEngine()):
        net = build(one, FULLY_CONNECTED.format(f"transpose: {str(transpose).lower()}"))
        for layer in net.layers:
            for index, blob in enumerate(layer.blobs):
                values = rounded(blob.shape, index, FACTORS[math]) / 8
                blob.data[...] = one.xp.asarray(values)
        net.blob("x").data[...] = one.xp.asarray(rounded((32, 16, 6, 6), 5, FACTORS[math]))
        net.blob("label").data[...] = one.xp.asarray(np.arange(32, dtype=np.float32))
        values = {"loss": np.array(net.forward())}
        net.parameters.clear_diffs()
        net.backward()
        values["gradient of x"] = host(net.blob("x").diff)
        for node in net.nodes:
            values |= {f"gradient of {node.name}/{i}": host(blob.diff) for i, blob in enumerate(node.layer.blobs)}
        found.append(values)
    assert_near(*found, 2 * TOLERANCES[math])


def test_copies_between_orders(common_engine: Callable[[str], Engine]) -> None:
    """Channels-last to C order and back, as in front of inner products."""
    engine = common_engine("fp32")
    xp = engine.xp
    for shape in ((5, 33, 7, 9), (2, 3, 31, 29), (1, 512, 7, 7), (64, 1, 28, 28)):
        values = rounded(shape, 1, np.float32)
        last = xp.moveaxis(xp.asarray(np.ascontiguousarray(np.moveaxis(values, 1, -1))), -1, 1)
        plain = xp.full(shape, np.nan, np.float32)
        engine.copy(last, plain)
        np.testing.assert_array_equal(host(plain), values)
        back = xp.moveaxis(xp.full((shape[0], *shape[2:], shape[1]), np.nan, np.float32), -1, 1)
        engine.copy(plain, back)
        np.testing.assert_array_equal(host(back), values)
