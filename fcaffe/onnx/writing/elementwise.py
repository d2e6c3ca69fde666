"""Elementwise layers in ONNX."""

from __future__ import annotations

import functools

import numpy as np

from fcaffe.layers.eltwise import PROD, SUM
from fcaffe.onnx.library import onnx
from fcaffe.onnx.writing.graph import Step, writes

# Layer types that compute what one operator does: the operator, the message, and its fields by names of attributes.
FUNCTIONS: dict[str, tuple[str, str, dict[str, str]]] = {
    "AbsVal": ("Abs", "", {}),
    "BNLL": ("Softplus", "", {}),
    "Sigmoid": ("Sigmoid", "", {}),
    "TanH": ("Tanh", "", {}),
    "ELU": ("Elu", "elu_param", {"alpha": "alpha"}),
    "Softmax": ("Softmax", "softmax_param", {"axis": "axis"}),
}
LEAKY = ("LeakyRelu", "relu_param", {"alpha": "negative_slope"})
LRN = ("LRN", "lrn_param", {"size": "local_size", "alpha": "alpha", "beta": "beta", "bias": "k"})


@writes(*FUNCTIONS)
def function(step: Step) -> str:
    return same(step, *FUNCTIONS[step.layer.type])


def same(step: Step, operator: str, message: str, fields: dict[str, str]) -> str:
    """The operator with the layer's fields as attributes."""
    p = getattr(step.param, message, None)
    return step.op(operator, step.x, **{attribute: getattr(p, field) for attribute, field in fields.items()})


@writes("ReLU")
def relu(step: Step) -> str:
    return same(step, *LEAKY) if step.param.relu_param.negative_slope else step.op("Relu", step.x)


@writes("PReLU")
def prelu(step: Step) -> str:
    shared = step.param.prelu_param.channel_shared
    channels = 1 if shared else step.bottoms[0][1]
    return step.op("PRelu", step.x, step.blob_in_shape(0, (channels, *(1,) * (len(step.bottoms[0]) - 2))))


@writes("Swish")
def swish(step: Step) -> str:
    return step.op("Mul", step.x, step.op("Sigmoid", step.times(step.x, step.param.swish_param.beta)))


@writes("Power")
def power(step: Step) -> str:
    p = step.param.power_param
    power, scale, shift = p.power, p.scale, p.shift
    if power == 0 or scale == 0:
        value = np.power(np.float32(shift), np.float32(power)).reshape(1)
        shape = step.op("Shape", step.x)
        return step.op("ConstantOfShape", shape, value=onnx().numpy_helper.from_array(value))
    y = step.plus(step.times(step.x, scale), shift)
    if power == 2:
        y = step.op("Mul", y, y)
    elif power != 1:
        y = step.op("Pow", y, step.array(power, "power"))
    return y


@writes("Exp")
def exp(step: Step) -> str:
    step.layer_has(exp_param="base scale shift")
    numbers = step.layer.numbers()
    return step.times(step.op("Exp", step.times(step.x, numbers["rate"])), numbers["factor"])


@writes("Log")
def log(step: Step) -> str:
    step.layer_has(log_param="base scale shift")
    numbers = step.layer.numbers()
    x = step.plus(step.times(step.x, numbers["scale"]), numbers["shift"])
    return step.times(step.op("Log", x), numbers["inverse"])


@writes("Clip")
def clip(step: Step) -> str:
    p = step.param.clip_param
    return step.op("Clip", step.x, step.array(p.min, "min"), step.array(max(p.min, p.max), "max"))


@writes("Threshold")
def threshold(step: Step) -> str:
    limit = step.array(step.param.threshold_param.threshold, "threshold")
    return step.cast(step.op("Greater", step.x, limit), "FLOAT")


@writes("Eltwise")
def eltwise(step: Step) -> str:
    step.layer_has(eltwise_param="operation coeff")
    layer = step.layer
    if layer.operation == SUM:
        in_place = step.param.top[0] == step.param.bottom[0]  # such a sum loses its first bottom, as in Caffe
        terms = list(zip(step.inputs, layer.coeffs, strict=True))[int(in_place) :]
        scaled = [step.times(name, coefficient) for name, coefficient in terms]
        return functools.reduce(lambda a, b: step.op("Add", a, b), scaled)
    kind = "Mul" if layer.operation == PROD else "Max"
    return functools.reduce(lambda a, b: step.op(kind, a, b), step.inputs)
