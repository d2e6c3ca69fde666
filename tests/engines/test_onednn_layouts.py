"""However the arrays of an operator lie, oneDNN's fast code computes it, and the bits are the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import cpu_engine, find_onednn
from fcaffe.engines.convolution import Folded
from fcaffe.engines.normalization import Normalizer
from fcaffe.engines.onednn.primitives import Description
from fcaffe.engines.windows import Windows

pytestmark = [
    pytest.mark.skipif(not find_onednn(), reason="needs onednn-cpu-gomp"),
    pytest.mark.usefixtures("all_threads"),
]

Shape = tuple[int, ...]


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def engine(request: pytest.FixtureRequest) -> Any:
    fast = cpu_engine(name="onednn")
    if request.param == "bf16" and not fast.library.has_bf16():
        pytest.skip("this processor has neither AVX-512 BF16 nor AMX: nothing of bfloat16 was checked")
    return cpu_engine(request.param, "onednn")


class Chosen(list[str]):
    """The names of the implementations that an engine compiles, those of reorders too."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine

    def array(self, values: np.ndarray) -> np.ndarray:
        """The values in the type of the engine's blobs, as they lie in memory."""
        if self.engine.half_dtype is None:
            return values
        rounded = np.empty_like(values, self.engine.half_dtype)
        self.engine.copy(values, rounded)
        return rounded


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, engine: Any) -> Iterator[Chosen]:
    names = Chosen(engine)
    compile_it = Description.compile

    def record(self: Description, arguments: Any) -> Any:
        names.append(self.name)
        return compile_it(self, arguments)

    monkeypatch.setattr(Description, "compile", record)
    engine._operations.clear()
    yield names
    assert names, "nothing was compiled, so nothing was checked"


def laid_out(values: np.ndarray, last: bool) -> np.ndarray:
    """A copy in C order, or channels-last if it has four axes or five."""
    if not last or values.ndim not in (4, 5):
        return np.array(values, order="C")
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)


def drawn(shape: Shape, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def check(
    chosen: Chosen,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    call: Callable[..., Any],
    fixed: Sequence[np.ndarray] = (),
    sums: bool = False,
) -> None:
    """Call it with every combination of layouts; `fixed` outputs, which have only one, are compared too. The results
    have the same bits, but for operators with `sums` over a channel, which go along the memory."""
    expected: list[np.ndarray] | None = None
    values = [drawn(shape, seed) for seed, shape in enumerate(inputs)]
    for layouts in itertools.product([True, False], repeat=len(inputs) + len(outputs)):
        ins = [chosen.array(laid_out(array, last)) for array, last in zip(values, layouts, strict=False)]
        outs = [
            chosen.array(laid_out(np.full(shape, np.nan, np.float32), last))
            for shape, last in zip(outputs, layouts[len(inputs) :], strict=True)
        ]
        call(*ins, *outs)
        found = [np.array(chosen.engine.to_numpy(array)) for array in (*outs, *fixed)]
        expected = expected or found
        digit = 2e-6 if chosen.engine.half_dtype is None else 2**-7
        for ours, theirs in zip(found, expected, strict=True):
            bound = digit * max(1.0, np.abs(theirs).max(initial=0)) if sums else 0.0
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=bound, err_msg=f"inputs and outputs channels-last: {layouts}"
            )
    slow = [name for name in chosen if "ref" in name]
    assert not slow, f"{slow} among {sorted(set(chosen))}"


# channels, outputs, groups; size; kernel, stride, padding, dilation
CHANNELS = [(3, 32, 1), (1, 20, 1), (7, 5, 1), (16, 24, 2), (6, 9, 3), (32, 32, 32), (7, 7, 7), (8, 16, 8), (3, 1, 1)]
WINDOWS: list[tuple[Shape, Shape, int, int, int]] = [
    ((9, 8), (3, 3), 1, 1, 1),
    ((9, 9), (1, 1), 1, 0, 1),
    ((9, 9), (1, 1), 2, 0, 1),
    ((17, 16), (5, 4), 3, 2, 1),
    ((11, 11), (3, 3), 1, 2, 2),
    ((3, 3), (3, 3), 1, 0, 1),
    ((1, 1), (1, 1), 1, 0, 1),
    ((17,), (3,), 2, 1, 1),
    ((5, 4, 5), (3, 2, 3), 1, 1, 1),
    ((4, 4, 5), (1, 1, 1), 2, 0, 1),
    ((5, 5, 5), (2, 2, 2), 1, 1, 2),
]


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
def test_convolution(engine: Any, chosen: Chosen, channels: tuple[int, int, int]) -> None:
    c, m, group = channels
    for size, kernel, stride, pad, dilation in WINDOWS:
        axes = len(size)
        windows = Windows(kernel, (stride,) * axes, (pad,) * axes, (dilation,) * axes)
        x, y = (2, c, *size), (2, m, *windows.convolved(size))
        w, b = drawn((m, c // group, *kernel), 7), drawn((m,), 8)
        dw = np.empty_like(w)
        check(chosen, [x], [y], lambda x, y, w=w, b=b, o=windows: engine.convolution_forward(x, w, b, y, o, group))
        check(chosen, [y], [x], lambda dy, dx, w=w, o=windows: engine.convolution_backward_data(dy, w, dx, o, group))

        def folded(x: Any, plus: Any, out: Any, w: Any = w, b: Any = b, o: Any = windows) -> None:
            weights = Folded(lambda: [w, b], lambda: (2 * w, b.copy()))
            with engine.fixed_weights():
                assert engine.folded_convolution(x, weights, out, o, group, True, plus)

        check(chosen, [x, y], [y], folded)

        def weights(x: Any, dy: Any, dw: Any = dw, o: Any = windows) -> None:
            engine.convolution_backward_weights(x, dy, dw, o, group, add=False)

        check(chosen, [x, y], [], weights, fixed=[dw], sums=True)


POOLINGS: list[tuple[Shape, Shape, Shape, Shape, Shape]] = [  # size, kernel, stride, pad, places
    ((12, 12), (2, 2), (2, 2), (0, 0), (6, 6)),
    ((13, 13), (3, 3), (2, 2), (0, 0), (6, 6)),
    ((12, 12), (3, 3), (2, 2), (0, 0), (6, 6)),  # the last window goes beyond the image
    ((9, 7), (3, 2), (1, 1), (1, 1), (9, 8)),
    ((7, 7), (7, 7), (1, 1), (0, 0), (1, 1)),
]


@pytest.mark.parametrize("channels", [1, 7, 16, 20])
def test_pooling(engine: Any, chosen: Chosen, channels: int) -> None:
    """Forward and backward may find the blobs laid out differently."""
    for size, kernel, stride, pad, places in POOLINGS:
        windows = Windows(kernel, stride, pad, (1, 1))
        x, y = (2, channels, *size), (2, channels, *places)
        memory = np.empty(y, np.float32)

        def largest(x: Any, dy: Any, y: Any, dx: Any, o: Any = windows, memory: Any = memory) -> None:
            engine.max_pool_forward(x, y, memory, o)
            engine.max_pool_backward(dy, memory, dx, o)

        def mean(x: Any, dy: Any, y: Any, dx: Any, o: Any = windows) -> None:
            engine.average_pool_forward(x, y, o)
            engine.average_pool_backward(dy, dx, o)

        def places_too(x: Any, dy: Any, y: Any, dx: Any, o: Any = windows) -> None:
            mask = np.empty_like(y, np.float32)
            engine.max_pool_with_indices(x, y, mask, o)
            engine.index_backward(dy, mask, dx, o)

        for call in (largest, mean, places_too):
            check(chosen, [x, y], [y, x], call)


@pytest.mark.parametrize("channels", [1, 7, 16, 20, 96])
@pytest.mark.parametrize("beta", [0.75, 0.5])
def test_lrn(engine: Any, chosen: Chosen, channels: int, beta: float) -> None:
    shape = (2, channels, 9, 12)
    memory = np.empty((2 * engine.lrn_memory, *shape[1:]), np.float32).transpose(0, 2, 3, 1).copy()

    def call(x: Any, dy: Any, y: Any, dx: Any) -> None:
        engine.lrn_forward(x, y, memory.transpose(0, 3, 1, 2), 5, 0.3, beta, 2.0)
        engine.lrn_backward(x, y, memory.transpose(0, 3, 1, 2), dy, dx, 5, 0.3, beta, 2.0)

    check(chosen, [shape, shape], [shape, shape], call)
    engine.copy(drawn((2, 40, 11, 12), 1), np.empty((2, 40, 11, 12), np.float32))  # compiled where LRN is plain code


@pytest.mark.parametrize("shape", [(4, 7, 25, 12), (2, 32, 13, 12), (2, 1, 70, 70), (2, 5, 9, 10, 11), (3, 40, 80)])
def test_batch_norm_and_scale(engine: Any, chosen: Chosen, shape: Shape) -> None:
    channels = shape[1]
    pair = drawn((channels,), 5), drawn((channels,), 6)
    mean, variance, dscale, dshift = np.zeros((4, channels), np.float32)
    memory = np.empty(int(np.prod(shape)), np.float32)

    for affine, relu in ((None, None), False), (pair, False), (pair, True):
        norm = Normalizer(mean, variance, 1e-5, *affine, relu)

        def train(x: Any, dy: Any, y: Any, dx: Any, norm: Normalizer = norm) -> None:
            gradients = () if norm.scale is None else (dscale, dshift)
            engine.batch_norm_moments(x, mean, variance)
            engine.batch_norm_train(x, y, norm, memory)
            engine.batch_norm_train_backward(x, dy, dx, norm, gradients, memory)

        def apply(x: Any, y: Any, norm: Normalizer = norm) -> None:
            engine.batch_norm_apply(x, y, norm)

        check(chosen, [shape, shape], [shape, shape], train, fixed=[mean, variance, dscale, dshift], sums=True)
        check(chosen, [shape], [shape], apply)

    def scale(x: Any, dy: Any, y: Any, dx: Any) -> None:
        engine.scale_channels(x, y, *pair)
        engine.scale_channels_backward(x, dy, dx, pair[0], dscale, dshift)

    check(chosen, [shape, shape], [shape, shape], scale, fixed=[dscale, dshift], sums=True)


@pytest.mark.parametrize("shape", [(3, 40, 9, 10), (2, 5, 30, 31), (2, 7, 9, 10, 11)])
def test_softmax(engine: Any, chosen: Chosen, shape: Shape) -> None:
    for axis in range(len(shape)):

        def call(x: Any, dy: Any, y: Any, dx: Any, axis: int = axis) -> None:
            engine.softmax_forward(x, y, axis)
            engine.softmax_backward(y, dy, dx, axis)

        check(chosen, [shape, shape], [shape, shape], call)


@pytest.mark.parametrize("shape", [(4, 32, 9, 10), (2, 7, 25, 26), (2, 3, 12, 11, 13), (5, 1, 41, 43), (90, 100)])
def test_value_by_value(engine: Any, chosen: Chosen, shape: Shape) -> None:
    def rectify(x: Any, dy: Any, y: Any, dx: Any) -> None:
        engine.relu_forward(x, y, 0.1)
        engine.relu_backward(y, dy, dx, 0.1)

    check(chosen, [shape, shape], [shape, shape], rectify)
    check(chosen, [shape] * 3, [shape], lambda a, b, c, y: engine.weighted_sum([a, b, c], [1.0, -0.5, 2.0], y))
    check(chosen, [shape] * 2, [shape], engine.add_relu)
    check(chosen, [shape] * 2, [shape], engine.multiply)
    check(chosen, [shape], [shape], engine.copy)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_parts_side_by_side(engine: Any, chosen: Chosen, axis: int) -> None:
    shape = (8, 18, 16, 14)
    parts = [(*shape[:axis], length, *shape[axis + 1 :]) for length in (3, 1, 12)]
    whole = (*shape[:axis], 16, *shape[axis + 1 :])
    check(chosen, parts, [whole], lambda a, b, c, y: engine.concat([a, b, c], y, axis))
    check(chosen, [whole], parts, lambda x, a, b, c: engine.split(x, [a, b, c], [3, 1, 12], axis))
