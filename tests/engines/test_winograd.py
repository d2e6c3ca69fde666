"""Convolutions by Winograd's transforms against plain ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine, cpu_engine, find_onednn
from fcaffe.engines.windows import Windows
from fcaffe.errors import UsageError
from fcaffe.net.derived import Derived
from tests.cases import case
from tests.golden_values import assert_close
from tests.net.test_inference_nets import net_of
from tests.pycaffe.test_forked_processes import in_fork

pytest.importorskip("numba", reason="--math winograd needs Numba")
if not find_onednn():
    pytest.skip("--math winograd needs onednn-cpu-gomp", allow_module_level=True)

from fcaffe.engines.winograd import blocks, transforms
from fcaffe.engines.winograd import engine as winograd
from fcaffe.engines.winograd.engine import suits

ROOT = Path(__file__).parents[2]
TOLERANCE = 3e-5  # of the largest value
PLAIN = NumpyEngine()


@pytest.fixture(scope="module")
def engine() -> Any:
    return cpu_engine("winograd")


@pytest.fixture(autouse=True)
def any_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transforms also compute outputs so small that they would not pay."""
    for least in "LEAST_SAVING", "LEAST_OF_GRADIENT", "LEAST_WORK":
        monkeypatch.setattr(winograd, least, 0)


def drawn(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal values in channels-last order."""
    if len(shape) < 4:
        return random.standard_normal(shape, np.float32)
    return np.moveaxis(random.standard_normal((shape[0], *shape[2:], shape[1]), np.float32), -1, 1)


class Case(NamedTuple):
    x: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    dy: np.ndarray
    windows: Windows
    group: int
    relu: bool


def results(engine: Any, case: Case) -> list[np.ndarray]:
    """The convolution, that with folded weights and a sum, and the gradients of x and of the weights."""
    forward, folded, dx, dweights = (np.empty_like(like) for like in (case.dy, case.dy, case.x, case.weights))
    dweights[...] = 1
    args = case.windows, case.group
    engine.convolution_forward(case.x, case.weights, case.bias, forward, *args, case.relu)
    engine.derived = Derived([], at_once=True)
    fold = lambda: (case.weights, case.bias)  # noqa: E731
    assert engine.folded_convolution(case.x, case.weights, fold, folded, *args, case.relu, case.dy)
    engine.derived = None
    engine.convolution_backward_data(case.dy, case.weights, dx, *args)
    engine.convolution_backward_weights(case.x, case.dy, dweights, *args, True)
    return [forward, folded, dx, dweights]


def a_case(random: np.random.Generator) -> Case:
    kernel, group = int(random.choice(transforms.KERNELS)), int(random.integers(1, 4))
    channels, outputs = random.integers(transforms.CHANNELS * (kernel // 2), 80, 2)
    pad, size = ([int(number) for number in random.integers(*ends, 2)] for ends in ((0, kernel), (kernel, 22)))
    windows = Windows((kernel, kernel), (1, 1), (pad[0], pad[1]), (1, 1))
    rows, columns = windows.convolved((size[0], size[1]))
    out = transforms.IN + 1 - kernel
    tiles = -(-rows // out) * -(-columns // out)
    batch = 1 + int(random.integers(3 * blocks.BLOCK_TILES)) // tiles
    dy, x = drawn(random, batch, group * outputs, rows, columns), drawn(random, batch, group * channels, *size)
    weights = random.standard_normal((group * outputs, channels, kernel, kernel), np.float32)
    return Case(x, weights, drawn(random, group * outputs), dy, windows, group, bool(random.integers(2)))


def test_any_shape(engine: Any) -> None:
    random = np.random.default_rng(1)
    for number in range(20):
        drawn_case = a_case(random)
        assert suits(drawn_case.weights, drawn_case.dy, drawn_case.windows, drawn_case.group, 0)
        with case(number, drawn_case.x.shape, drawn_case.dy.shape, drawn_case.windows, drawn_case.group):
            for ours, plain in zip(results(engine, drawn_case), results(PLAIN, drawn_case), strict=True):
                np.testing.assert_allclose(ours, plain, rtol=0, atol=TOLERANCE * np.abs(plain).max())


def test_the_bits_do_not_depend_on_the_number_of_threads(all_threads: None, engine: Any) -> None:
    random, several = np.random.default_rng(2), engine._numba_threads
    for number in range(6):
        drawn_case = a_case(random)
        engine._numba_threads = 1
        by_one = results(engine, drawn_case)
        engine._numba_threads = several
        with case(number, drawn_case.x.shape, drawn_case.dy.shape, drawn_case.windows, drawn_case.group):
            for one, other in zip(by_one, results(engine, drawn_case), strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(engine: Any, value: float) -> None:
    drawn_case = a_case(np.random.default_rng(3))
    drawn_case.x[0, 0, 1, 1] = value
    with np.errstate(invalid="ignore"):
        for ours, plain in zip(results(engine, drawn_case), results(PLAIN, drawn_case), strict=True):
            assert not np.isfinite(ours[~np.isfinite(plain)]).any()


NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 32 dim: 16 dim: 16 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a"
        convolution_param { num_output: 40 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "Convolution" bottom: "a" top: "b"
        convolution_param { num_output: 33 kernel_size: 3 weight_filler { type: "xavier" } } }
"""


def test_each_pass_of_a_net_for_inference(engine: Any) -> None:
    """A replay repeats no calls of compiled code, so it runs these layers."""
    whole, plain = net_of(NET, True, engine), net_of(NET, False, PLAIN)
    for number in range(4):
        for net in whole, plain:
            net.blob("x").data[...] = np.random.default_rng(number).standard_normal(net.blob("x").shape)
            net.forward()
        assert_close(whole.blob("b").data, plain.blob("b").data, f"pass {number}", TOLERANCE)


def test_one_compilation_serves_all(engine: Any) -> None:
    """Whatever the orders of arrays, and whether they may be written: other signatures would take seconds each."""
    results(engine, a_case(np.random.default_rng(6)))
    for function in (blocks.convolve, blocks.kernel_gradient, blocks.transform_kernels, blocks.gradient_of_kernels):
        assert len(function.signatures) == 1


def run(code: str, **environment: str) -> str:
    """The log of a Python process."""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": "", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stderr


def test_the_log_says_that_it_compiles(tmp_path: Path) -> None:
    code = """
import numpy as np
from fcaffe.engines.winograd.blocks import load
from fcaffe.engines.winograd.compiling import announce
announce()
load(np.ones((1, 16, 1, 1), np.float32), 0, 0, 0, 0, 1, np.ones(16, np.float32))"""
    logs = [run(code, XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)]
    assert [log.count("Numba compiles the convolutions") for log in logs] == [1, 0]
    assert "once on this machine" in logs[0]
    (tmp_path / "file").touch()
    assert "in each run, since no cache folder can be written" in run(code, XDG_CACHE_HOME=str(tmp_path / "file"))


@pytest.mark.parametrize(("math", "kind"), [("fp32", "I"), ("winograd", "F")])
def test_without_numba(tmp_path: Path, math: str, kind: str) -> None:
    """The log of a run in fp32 says what the extra brings; --math winograd is an error."""
    (tmp_path / "net.prototxt").write_text(NET)
    code = f"""
import sys
sys.modules["numba"] = None
from fcaffe.cli import main
main(["time", "--model", "{tmp_path}/net.prototxt", "--iterations", "1", "--math", "{math}"])"""
    (line,) = re.findall(r"^(\w)\d.*\(pip install numba\)", run(code), re.MULTILINE)
    assert line == kind


@pytest.mark.parametrize("size", transforms.KERNELS)
def test_the_matrices_give_a_convolution(size: int) -> None:
    random = np.random.default_rng(5)
    d, g = random.standard_normal((6, 6)), random.standard_normal((size, size))
    out, of_kernel = 7 - size, transforms.of_kernel(size)
    middle = (of_kernel @ g @ of_kernel.T) * (transforms.B_T @ d @ transforms.B_T.T)
    expected = [[(d[i : i + size, j : j + size] * g).sum() for j in range(out)] for i in range(out)]
    np.testing.assert_allclose(transforms.of_output(out) @ middle @ transforms.of_output(out).T, expected, atol=1e-12)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_is_told_to_be_spawned() -> None:
    """Numba would end it by SIGTERM."""
    engine = cpu_engine("winograd")
    with pytest.raises(UsageError, match="spawn"):
        in_fork(lambda: engine._run(lambda: None))
    with pytest.raises(UsageError, match="spawn"):
        in_fork(lambda: cpu_engine("winograd").name)
