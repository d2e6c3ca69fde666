"""Extreme numbers in any field of any layer: an error of fcaffe's or a layer that works, soon and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe import log
from fcaffe.engines import Engine, cpu_engine, memory
from fcaffe.errors import FcaffeError
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.tools.shapes import _Hollow
from tests.layers.examples import EXAMPLES, Example
from tests.layers.test_contract import bottom_values
from tests.soon import soon

ROOM = 1 << 28  # bytes that arrays may have
FEW = 1 << 20  # values up to which a layer is also run

LIMITS: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: [0, -1, 2**31 - 1, -(2**31)],
    FieldDescriptor.CPPTYPE_UINT32: [0, 2**31 - 1, 2**32 - 1],
    FieldDescriptor.CPPTYPE_INT64: [0, -1, 2**31 - 1, 2**32 - 1, 2**62, -(2**63)],
    FieldDescriptor.CPPTYPE_FLOAT: [0.0, -1.0, 1e38, -1e38, math.nan, math.inf, -math.inf],
    FieldDescriptor.CPPTYPE_BOOL: [False, True],
}
INNER = ("FillerParameter", "BlobShape")
Place = tuple[tuple[str, ...], Any]  # the way to a field, and its descriptor


def places(kind: str) -> Iterator[Place]:
    """Every field of numbers of a layer of this type: its own, and those of its fillers and shapes."""
    descriptor = pb.LayerParameter.DESCRIPTOR
    messages = [((), descriptor)]
    if own := own_param(kind):
        parameters = descriptor.fields_by_name[own].message_type
        messages.append(((own,), parameters))
        inner = (f for f in parameters.fields if f.message_type is not None)
        messages += [((own, f.name), f.message_type) for f in inner if f.message_type.name in INNER]
    for way, message in messages:
        yield from (((*way, field.name), field) for field in message.fields if field.cpp_type in LIMITS)


def put(message: Any, way: tuple[str, ...], value: Any) -> None:
    """Set a field; of a repeated one, or a field in one, the first, which is added where there is none."""
    for name in way[:-1]:
        inner = getattr(message, name)
        message = (inner[0] if len(inner) else inner.add()) if hasattr(inner, "add") else inner
    target = getattr(message, way[-1])
    if not hasattr(target, "append"):
        setattr(message, way[-1], value)
    elif len(target):
        target[0] = value
    else:
        target.append(value)


def own_param(kind: str) -> str:
    """The name of the field with the layer's own parameters; "" if it has none."""
    shared = {"Deconvolution": "convolution", "Im2col": "convolution", "LSTM": "recurrent", "RNN": "recurrent"}
    wanted = shared.get(kind, kind).lower()
    names = {f.name.removesuffix("_param").replace("_", ""): f.name for f in pb.LayerParameter.DESCRIPTOR.fields}
    return names.get(wanted, "")


def net_of(kind: str, example: Example) -> Any:
    net = pb.NetParameter(force_backward=True)
    net.state.phase = pb.Phase.Value(example.phase)
    for index, shape in enumerate(example.bottoms):
        net.layer.add(name=f"in{index}", type="Input", top=[f"x{index}"]).input_param.shape.add(dim=shape)
    layer = net.layer.add(name="it", type=kind)
    layer.MergeFrom(parse_text(example.text, pb.LayerParameter))
    layer.bottom.extend(f"x{index}" for index in range(len(example.bottoms)))
    layer.top.extend(f"y{index}" for index in range(example.tops))
    if own := own_param(kind):
        getattr(layer, own).SetInParent()
    return net


def run(param: Any, example: Example, engine: Engine, whole: bool) -> None:
    """Build the net; with `whole`, and unless it is large, run it forward and backward too."""
    net = Net(param, Context(engine, CaffeRandom(1), noise="counter"))
    if whole and sum(blob.count for node in net.nodes for blob in (*node.tops, *node.layer.blobs)) < FEW:
        for index, values in enumerate(bottom_values(example)):
            net.blob(f"x{index}").data[...] = values
        net.forward()
        net.backward()
    net.close()


ALL = [(kind, example) for kind, examples in EXAMPLES.items() for example in examples]


@settings(deadline=None, max_examples=80, derandomize=True)
@given(data=st.data())
def test_extreme_numbers(data: st.DataObject) -> None:
    kind, example = data.draw(st.sampled_from(ALL))
    param = net_of(kind, example)
    layer = param.layer[-1]
    fields = list(places(kind))
    for way, field in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2, unique_by=lambda p: p[0])):
        put(layer, way, data.draw(st.sampled_from(LIMITS[field.cpp_type])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "free_bytes", lambda: ROOM)
        patch.setattr(log.lines, "_minimum", 3)
        for engine, whole in ((Engine(_Hollow()), False), (cpu_engine(), True)):
            try:
                with soon():
                    run(param, example, engine, whole)
            except FcaffeError as problem:
                assert 'layer "it"' in str(problem) and "\n" not in str(problem) and len(str(problem)) < 600
