"""Conversion to and from ONNX files and state dicts of PyTorch."""

from __future__ import annotations

from typing import Any

from fcaffe import log
from fcaffe.engines import cpu_engine
from fcaffe.errors import UsageError
from fcaffe.model_files import Model
from fcaffe.net import Context, Net
from fcaffe.net.weights import copy_weights, tell_untouched
from fcaffe.onnx.library import OPSETS, ToOnnx
from fcaffe.onnx.weights import read_weights
from fcaffe.onnx.writing.export import to_onnx, write_onnx
from fcaffe.onnx.writing.refused import check_types
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom
from fcaffe.tools.merge_bn import merge_bn
from fcaffe.tools.nets import read_net_for


def deploy_net(param: Any, model: Model | None = None, source: str = "") -> Net:
    """The net of a NetParameter with the weights of a model, which was read from `source`. Other layers are ignored."""
    with log.quiet():
        net = Net(param, Context(cpu_engine(), CaffeRandom(None), noise="counter"))
    if model is not None:
        known = {node.name for node in net.nodes}
        given = [layer for layer in model.layers if layer.name in known]
        copy_weights(net, Model(model.param, given), source)
        tell_untouched(net, {layer.name for layer in given}, source)
    return net


def model_to_onnx(model: Model, source: str, target: str, net_path: str | None, how: ToOnnx) -> None:
    """Write the net of the prototxt `net_path` with the weights of a model, from the file `source`, as an ONNX file.

    Raises UsageError without a prototxt, or if the opset is too old or too new.
    """
    if net_path is None:
        raise UsageError(f"an ONNX file is of a net: give the deploy prototxt of {source} as --model")
    if how.opset not in OPSETS:
        raise UsageError(f"ONNX's operators can be those of version {OPSETS[0]} to {OPSETS[-1]}, not {how.opset}")
    param = read_net_for(net_path, pb.TEST)
    check_types(param)
    if how.fold:
        merged = merge_bn(param, model)
        param, model = merged.net, merged.model
    net = deploy_net(param, model, source)
    try:
        write_onnx(target, to_onnx(net, how.preprocessing, how.opset))
    finally:
        net.close()


def weights_for(path: str, net_path: str | None) -> Model:
    """Read the weights of a net from an ONNX file (see `read_weights`)."""
    return read_weights(path, deploy_net(read_net_for(net_path, pb.TEST)) if net_path else None)
