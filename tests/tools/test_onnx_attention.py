"""Products of two blobs from ONNX, and attention of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.tools.onnx_graphs import converted, largest_difference, model_of

HEADS = "r{0} = Reshape (m{0}, s) {0} = Transpose <perm = [0, 2, 1, 3]> (r{0}) "  # (N, heads, steps, values)
ATTENTION = (
    "mq = MatMul (x, wq) mk = MatMul (x, wk) mv = MatMul (x, wv) s = Constant <value_ints = [2, 7, 3, 8]> () "
    + "".join(HEADS.format(name) for name in "qkv")
    + "t = Transpose <perm = [0, 1, 3, 2]> (k) d = Constant <value_float = 0.3535534> () p = MatMul (q, t) "
    "g = Mul (p, d) w = Softmax <axis = -1> (g) z = MatMul (w, v) b = Transpose <perm = [0, 2, 1, 3]> (z) "
    "f = Constant <value_ints = [2, 7, 24]> () o = Reshape (b, f) e = MatMul (o, wo) y = Add (x, e)"
)


def test_attention(tmp_path: Path) -> None:
    """As PyTorch's exporters write it."""
    weights = {f"w{name}": (24, 24) for name in "qkvo"}
    made, path = converted(tmp_path, model_of(ATTENTION, {"x": (2, 7, 24)}, weights), target="forks")
    assert largest_difference(made, path) <= 1e-5
    assert [layer.type for layer in made.net.layer].count("MatMul") == 2


def test_random_products(tmp_path: Path) -> None:
    """Sums of products with axes in any order; factors with repeated and missing axes, vectors, constants."""
    dice = random.Random(4)
    for _ in range(60):
        lengths, one = dict(zip("abmkn", dice.choices([1, 2, 3, 4], k=5), strict=True)), ""
        batch, z = "ab"[dice.randrange(3) :], dice.choice(["abkn", "bnk", "nk", "k"])
        if dice.random() < 0.5:
            x, z, y = ("".join(dice.sample(axes, len(axes))) for axes in (batch + "mk", batch + "kn", batch + "mn"))
            body = f'y = Einsum <equation = "{x},{z}->{y}"> (x, z)'
        else:
            x, one = batch + "mk", dice.choice(["", "xa", "xb", "za", "zb"])  # one axis that is repeated
            order = [*range(len(z) - 2), len(z) - 1, len(z) - 2]
            turned = f"t = Transpose <perm = {order}> (z)" if z.endswith("nk") else "t = Identity (z)"
            body = f"{turned} y = MatMul (x, t)"
        values: list[dict[str, tuple[int, ...]]] = [{}, {}]  # inputs, constants
        held = dice.choice(["", "", "x", "z"])
        for name, axes in (("x", x), ("z", z)):
            values[name == held][name] = tuple(1 if name + axis == one else lengths[axis] for axis in axes)
        made, path = converted(tmp_path, model_of(body, *values), target="forks")
        assert largest_difference(made, path) <= 1e-5, (body, values)
