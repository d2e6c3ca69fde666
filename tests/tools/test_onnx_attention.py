"""Products of two blobs from ONNX, and attention as PyTorch's exporters write it: the same values, and the same losses.

Tests with PyTorch run the Python of the variable TORCH_PYTHON, which has torch and onnxscript.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fcaffe.net.weights import copy_weights
from fcaffe.onnx.reading.convert import from_onnx
from fcaffe.solvers import Solver
from fcaffe.tools.target import read_target
from tests.tools.onnx_graphs import converted, largest_difference, model_of

FORKS = read_target("forks")
STEPS, RATE, MOMENTUM = 20, 0.1, 0.9
EXPORTS = [("old", 17), ("new", 18), ("new", 23)]  # an exporter, and a version of operators, of which 23 has Attention
NETS = """
import sys
import torch
from torch import nn
from torch.nn import functional as F
class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.norms = kind, nn.ModuleList([nn.LayerNorm(24), nn.LayerNorm(24)])
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.module = nn.MultiheadAttention(24, 3, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
    def attention(self, x):
        if self.kind == "module":
            return self.module(x, x, x, need_weights=False)[0]
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        if self.kind == "einsum":
            y = (torch.einsum("bhqd,bhkd->bhqk", q, k) * 8**-0.5).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.kind == "causal")
        return self.out(y.transpose(1, 2).reshape(x.shape))
    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))
class Vit(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.patches, self.norm, self.head = nn.Conv2d(3, 24, 4, 4), nn.LayerNorm(24), nn.Linear(24, 5)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 17, 24))
        self.blocks = nn.Sequential(Block(kind), Block(kind))
    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])
torch.manual_seed(3)
image, words = torch.randn(2, 3, 16, 16), torch.randn(6, 7, 24)
nets = {f"vit {kind}": (Vit(kind), image) for kind in ("einsum", "fused", "causal")}
nets["encoder"] = nn.Sequential(Block("module"), nn.Flatten(), nn.Linear(168, 5)), words
for name, (net, x) in nets.items():
    for parameter in net.parameters():  # exporters leave out biases of 0
        parameter.data += 0.1 * torch.randn_like(parameter)
    for exporter, opset in EXPORTS:
        torch.onnx.export(net.eval(), (x,), f"{name} {exporter} {opset}.onnx", dynamo=exporter == "new",
                          opset_version=opset, input_names=["x"], output_names=["y"])
net, labels = nets["encoder"][0].train(), torch.arange(6) % 5
optimizer = torch.optim.SGD(net.parameters(), RATE, MOMENTUM)
words.numpy().tofile("words")
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(words), labels)
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the nets as ONNX files by both exporters, and the losses of the encoder."""
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        pytest.skip("set TORCH_PYTHON to a Python that has torch and onnxscript")
    folder = tmp_path_factory.mktemp("exported")
    code = f"EXPORTS, STEPS, RATE, MOMENTUM = {EXPORTS}, {STEPS}, {RATE}, {MOMENTUM}\n{NETS}"
    ran = subprocess.run([python, "-c", code], cwd=folder, check=True, capture_output=True, text=True)
    (folder / "losses").write_text("\n".join(ran.stdout.splitlines()[-STEPS:]))
    return folder


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("name", ["vit einsum", "vit fused", "vit causal", "encoder"])
def test_attention(name: str, export: tuple[str, int], exported: Path) -> None:
    path = exported / f"{name} {export[0]} {export[1]}.onnx"
    assert largest_difference(from_onnx(str(path), target=FORKS), path) <= 1e-5


@pytest.mark.usefixtures("on_each_engine")
@pytest.mark.parametrize("export", EXPORTS)
def test_an_encoder_learns_as_in_pytorch(
    export: tuple[str, int], exported: Path, solver_from: Callable[..., Solver]
) -> None:
    made = from_onnx(str(exported / f"encoder {export[0]} {export[1]}.onnx"), target=FORKS)
    solver = solver_from(
        f"""base_lr: {RATE} momentum: {MOMENTUM} lr_policy: "fixed" snapshot_after_train: false net_param {{ {made.net}
        layer {{ name: "labels" type: "Input" top: "labels" input_param {{ shape {{ dim: 6 }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "labels" top: "loss" }} }}"""
    )
    copy_weights(solver.net, made.model, "the model")
    solver.net.blob("x").data[...] = np.fromfile(exported / "words", np.float32).reshape(6, 7, 24)
    solver.net.blob("labels").data[...] = np.arange(6) % 5
    found = []
    for _ in range(STEPS):
        solver.step(1)
        found.append(float(solver.smoothed.mean))
    wanted = np.loadtxt(exported / "losses")
    assert wanted[-1] < wanted[0] / 2
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


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
