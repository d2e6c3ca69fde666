"""Formulas: derivatives of all functions, NaN and infinite values, and the chains of oneDNN."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine, cpu_engine
from fcaffe.engines.formulas import FUNCTIONS, Formula
from fcaffe.engines.onednn.formulas import passes_of
from tests.engines.cuda import emulator, stand_in_engine

ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 88, -88, 1e30, -1e30], np.float32)
TWO = {"+", "-", "*", "/", ">", ">=", "<", "<=", "max", "min", "select"}


def texts() -> list[str]:
    """A formula of each function: of one array, of two, and of an array and a number on either side."""
    found = []
    for name in FUNCTIONS:
        if name == "**":
            found += ["x ** 2", "x ** 0.5", "x ** 1.7", "x ** -1", "x ** 9"]
        elif name not in TWO:
            found.append(f"{name}(x)")
        else:
            pattern = f"{name}({{}}, {{}})" if name.isalpha() else f"{{}} {name} {{}}"
            found += [pattern.format(*pair) for pair in (("x", "y"), ("x", "0.5"), ("0.5", "x"))]
    return found


@pytest.mark.parametrize("text", texts())
def test_derivatives(text: str) -> None:
    x, step = np.linspace(0.6, 3, 50).astype(np.float64), 1e-6
    arrays = {"y": np.linspace(2, 1.1, 50)}
    formula = Formula(text)
    above, below = (formula.of_arrays({"x": value, **arrays}, np) for value in (x + step, x - step))
    slopes = (above - below) / (2 * step)
    if any(sign in text for sign in "<>") or "sign" in text:
        slopes = 0 * x  # but where it jumps
    found = formula.derivative().of_arrays({"x": x, **arrays}, np)
    assert np.abs(found - slopes).max() <= 1e-4 * max(1, np.abs(slopes).max())


@pytest.mark.parametrize("text", texts())
def test_values_that_are_not_finite_go_through_all_engines_alike(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (part.ravel() for part in np.meshgrid(np.tile(ODD, 40), ODD))
    formula, arrays = Formula(text), {"x": x, "y": y}
    engines, plain = [cpu_engine()], np.empty_like(x)
    if emulator.has_compiler:
        stand_in_engine.install(monkeypatch)
        engines.append(stand_in_engine.engine())
    named = {name: np.ascontiguousarray(arrays[name]) for name in sorted(formula.names)}
    with np.errstate(all="ignore"):
        NumpyEngine().pointwise(formula, named, plain)
        for engine in engines:
            found = engine.xp.empty_like(engine.from_numpy(x))
            engine.pointwise(formula, {name: engine.from_numpy(each) for name, each in named.items()}, found)
            message = f"{text}, {engine.name}"
            np.testing.assert_allclose(engine.to_numpy(found), plain, rtol=2e-6, atol=1e-37, err_msg=message)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("tanh(x)", 1),
        ("dy * (1 - y * y)", 1),
        ("dy * (y * (1 - y))", 1),
        ("x * sigmoid(2 * x)", 1),
        ("max(-1, min(x, 1))", 1),
        ("dy * (x >= 0) * (x <= 1)", 2),
        ("log1p(x)", None),
    ],
)
def test_passes_over_memory(text: str, count: int | None) -> None:
    passes = passes_of(Formula(text).tree)
    assert (None if passes is None else len(passes)) == count


def test_what_a_formula_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="a formula has no sinus"):
        Formula("sinus(x)")
