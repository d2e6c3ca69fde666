"""Operators that work on each value of a blob."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.onnx.reading.graph import Step, Value
from fcaffe.onnx.writing.elementwise import FUNCTIONS, LEAKY, LRN

# erfc(z) = exp(-z^2) * P(t) with t = 1 / (1 + RATE * z), for z of 0 and more: coefficients of t, t^2, ...
RATE = 0.3275911
ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
ROOT = math.sqrt(0.5)
NEAR = 1e-4  # of constants in a formula
LARGE = 1e3  # a limit beyond which values hardly are

_FUNCTIONS: dict[str, tuple[str, str, dict[str, str]]] = {
    operator: (kind, message, fields)
    for kind, (operator, message, fields) in {**FUNCTIONS, "ReLU": LEAKY, "LRN": LRN}.items()
}
_FUNCTIONS |= {"Relu": ("ReLU", "", {}), "Exp": ("Exp", "", {}), "Log": ("Log", "", {})}


def function(step: Step) -> Value:
    """A layer with the attributes as its fields."""
    kind, message, fields = _FUNCTIONS[step.op]
    if kind == "LRN" and step.attribute("size") % 2 == 0:
        raise step.refuse(f"it normalises over {step.attribute('size')} channels", "use an odd number of channels")
    given = {message: {field: step.attribute(attribute) for attribute, field in fields.items()}} if fields else {}
    return step.layer(kind, step.x, **given)


_FORMULAS: dict[str, Callable[[Step], Value]] = {
    "Neg": lambda step: step.power(step.x, scale=-1),
    "Sqrt": lambda step: step.power(step.x, power=0.5),
    "Reciprocal": lambda step: step.power(step.x, power=-1),
    "Selu": lambda step: step.power(
        step.layer("ELU", step.x, elu_param={"alpha": step.attribute("alpha")}), step.attribute("gamma")
    ),
    "HardSigmoid": lambda step: clipped(
        step, step.power(step.x, step.attribute("alpha"), step.attribute("beta")), 0, 1
    ),
    "Softsign": lambda step: step.product(step.x, step.power(step.layer("AbsVal", step.x), shift=1, power=-1)),
    "HardSwish": lambda step: step.product(step.x, step.power(clipped(step, step.power(step.x, 1, 3), 0, 6), 1 / 6)),
}


def formula(step: Step) -> Value:
    return _FORMULAS[step.op](step)


def power(step: Step) -> Value:
    exponent = step.constant(1)
    if exponent is None or exponent.size != 1:
        raise step.refuse("its exponent is no single constant", "use one number as exponent")
    return step.power(step.x, power=float(exponent.flat[0]))


def clip(step: Step) -> Value:
    return clipped(step, step.x, step.number(1, "min", -math.inf), step.number(2, "max", math.inf))


def clipped(step: Step, x: Value, low: float, high: float) -> Value:
    """Limits by ReLU: max(x, low) = low + ReLU(x - low), and min(x, high) = high - ReLU(high - x).

    That rounds to the precision of the limit. Large limits, which are hardly reached, are exact within instead:
    max(x, low) = x + ReLU(low - x), and min(x, high) = x - ReLU(x - high).
    """
    if low == 0 and high == 6 and (y := step.layer_if_taken("ReLU6", x)):
        return y
    if low == 0:
        x = step.layer("ReLU", x)
    elif low >= -LARGE:
        x = step.power(step.layer("ReLU", step.power(x, shift=-low)), shift=low)
    elif low > -FLT_MAX:
        x = step.sum(x, step.layer("ReLU", step.power(x, scale=-1, shift=low)))
    if high <= LARGE:
        return step.power(step.layer("ReLU", step.power(x, scale=-1, shift=high)), scale=-1, shift=high)
    return step.sum(x, step.layer("ReLU", step.power(x, shift=-high)), coefficients=(1, -1)) if high < FLT_MAX else x


# --- GELU ---


def gelu(step: Step) -> Value:
    if step.attribute("approximate") == "none":
        return error_gelu(step, step.x)
    x, rate = step.x, math.sqrt(2 / math.pi)  # 0.5 x (1 + tanh(rate * (x + 0.044715 x^3)))
    inner = step.sum(x, step.power(x, power=3), coefficients=(rate, 0.044715 * rate))
    return step.product(x, step.power(step.layer("TanH", inner), scale=0.5, shift=0.5))


def error_gelu(step: Step, x: Value) -> Value:
    """x * (1 + erf(x / sqrt(2))) / 2 = ReLU(x) - |x| erfc(|x| / sqrt(2)) / 2.

    Caffe has no error function. Formula 7.1.26 of Abramowitz and Stegun gives erfc to 1.5e-7, which the factor
    exp(-x^2 / 2) makes smaller for larger |x|: the result is right to 1e-7, about as float32 rounds it.
    """
    size = step.layer("AbsVal", x)
    t = step.power(size, scale=RATE * ROOT, shift=1, power=-1)
    powers = [step.power(t, power=exponent) for exponent in range(1, 1 + len(ERFC))]
    polynomial = step.sum(*powers, coefficients=ERFC)
    bell = step.layer("Exp", step.power(x, power=2), exp_param={"scale": -0.5})
    return step.sum(step.layer("ReLU", x), step.product(size, polynomial, bell), coefficients=(1, -0.5))


_PLUS = ("Add", ("Erf", [("Mul", "x", ROOT), ("Div", "x", 1 / ROOT)]), 1.0)
_GELU = [("Mul", ("Mul", "x", _PLUS), 0.5), ("Mul", ("Mul", "x", 0.5), _PLUS), ("Mul", "x", ("Mul", _PLUS, 0.5))]


def gelu_behind(step: Step) -> Value | None:
    """The GELU whose last multiplication the node is."""
    found = match(step, _GELU, step.node.outputs[0], {})
    x = step.net.known[found["x"]] if found else None
    return error_gelu(step, x) if isinstance(x, Value) else None


def match(step: Step, pattern: Any, name: str, found: dict[str, str]) -> dict[str, str] | None:
    """The values by their names in a pattern, or None if the value of this name is not computed so.

    A pattern is a name, a number, an operator with patterns as its first operands, or a list of patterns, of which the
    first that matches counts. Terms and factors may have any order. Outputs of operators have the operators as names.
    """
    if isinstance(pattern, list):
        return next((one for form in pattern if (one := match(step, form, name, found)) is not None), None)
    if isinstance(pattern, str):
        return {**found, pattern: name} if found.get(pattern, name) == name else None
    if isinstance(pattern, float):
        value = number_of(step, name)
        return found if value is not None and abs(value - pattern) < NEAR else None
    node = step.node if name in step.node.outputs else step.net.makers.get(name)
    if node is None or node.op != pattern[0] or len(node.inputs) < len(pattern) - 1:
        return None
    for names in itertools.permutations(node.inputs) if node.op in ("Add", "Mul") else [node.inputs]:
        bound: dict[str, str] | None = found
        for operand, each in zip(pattern[1:], names, strict=False):
            bound = None if bound is None else match(step, operand, each, bound)
        if bound is not None:
            return {**bound, node.op: name}
    return None


def number_of(step: Step, name: str) -> float | None:
    """The value of a constant that has one."""
    known = step.net.known.get(name)
    return float(known.flat[0]) if isinstance(known, np.ndarray) and known.size == 1 else None
