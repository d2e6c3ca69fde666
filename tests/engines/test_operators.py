"""The operators of every engine against NumPy's plain ones, in each precision and in several memory orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine, cpu_engine, find_onednn
from fcaffe.engines.cuda import kernels, normalization
from fcaffe.engines.formulas import Formula
from fcaffe.engines.normalization import Normalizer
from fcaffe.engines.onednn.dnnl import AVX512_BF16
from fcaffe.engines.onednn.primitives import Description, Primitive
from fcaffe.engines.windows import Windows
from tests.cases import case
from tests.engines.cuda import emulator, stand_in_cupy, stand_in_engine

pytestmark = pytest.mark.usefixtures("all_threads")

PLAIN = NumpyEngine()
KINDS = ["oneDNN fp32", "oneDNN winograd", "oneDNN bf16", "CUDA fp32", "CUDA fp16", "CUDA bf16"]
# Of the largest value. A convolution may differ by 4 times as much.
DIGITS = {"fp32": 5e-6, "winograd": 7.5e-6, "fp16": 2**-10, "bf16": 2**-7}
ORDERS = ["channels last", "C order", "slice", "unaligned", "mixed"]  # mixed: each other array in C order

Shape = tuple[int, ...]


class Wide(NamedTuple):
    """Parameters, their gradients and indices, which are float32 in each precision: values, or the shape of an
    output."""

    of: Any


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    name, math = request.param.split()
    if name == "CUDA":
        if not emulator.has_compiler:
            pytest.skip("the emulator of kernels needs g++")
        stand_in_engine.install(monkeypatch)
        if math == "fp16":  # so that threads go round their loops
            for module, name in (kernels, "MOST_BLOCKS"), (normalization, "FORWARD"), (normalization, "BACKWARD"):
                monkeypatch.setattr(module, name, 2)
            monkeypatch.setattr(normalization, "MOST_BLOCKS", 2)
        yield stand_in_engine.engine(math=math)
        stand_in_cupy.reset()
        return
    if not find_onednn():
        pytest.skip("needs onednn-cpu-gomp")
    if math == "bf16" and not cpu_engine(name="onednn").library.has(AVX512_BF16):  # type: ignore[attr-defined]
        pytest.skip("this processor has neither AVX-512 BF16 nor AMX: nothing of bfloat16 was checked")
    if math == "winograd":
        pytest.importorskip("numba", reason="--math winograd needs Numba")
    compiled: list[str] = []
    compile_it = Primitive.__init__

    def compile_and_note(self: Primitive, description: Description, arguments: Any) -> None:
        compiled.append(description.name)
        compile_it(self, description, arguments)

    monkeypatch.setattr(Primitive, "__init__", compile_and_note)
    yield cpu_engine(math, "onednn")
    if request.node.originalname != "test_inner_product":  # of one column, which has no other code
        slow = [name for name in compiled if "ref" in name]
        assert not slow, f"oneDNN has no fast code for {slow}"


def drawn(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def put(engine: Any, values: np.ndarray, order: str, wide: bool) -> Any:
    """The values on the engine, in this order, and in 16 bits unless `wide`."""
    xp, shape = engine.xp, values.shape
    dtype = np.dtype(np.float32) if wide or engine.half_dtype is None else engine.half_dtype
    if len(shape) < 3 or order == "C order" or wide:
        array = xp.empty(shape, dtype)
    else:
        extra = 3 if order == "slice" else 0
        last = shape[0], *shape[2:], shape[1] + extra
        count, offset = int(np.prod(last)), int(order == "unaligned")
        flat = xp.empty(count + offset, dtype)[offset:]
        array = xp.moveaxis(flat.reshape(last), -1, 1)[:, : shape[1]]
    if array.dtype.name == "void16":  # which NumPy cannot convert to
        engine.copy(values, array)
    else:
        array[...] = engine.from_numpy(values).astype(dtype)
    return array


def get(engine: Any, array: Any) -> np.ndarray:
    return engine.to_numpy(array).astype(np.float32)


def check(
    engine: Any, inputs: Sequence[Any], outputs: Sequence[Any], call: Callable[..., Any], times: float = 1
) -> None:
    """call(engine, *inputs, *outputs) gives what it gives on the plain engine, within `times` the digits, in whatever
    orders the arrays lie in memory."""
    wide = [isinstance(each, Wide) for each in (*inputs, *outputs)]
    values = [each.of if isinstance(each, Wide) else each for each in inputs]
    shapes = [each.of if isinstance(each, Wide) else each for each in outputs]
    values += [np.full(shape, np.nan, np.float32) for shape in shapes]
    math = "winograd" if "Winograd" in engine.name else "fp32"
    if engine.half_dtype is not None:
        math = "bf16" if engine.half_dtype.name != "float16" else "fp16"
    expected: list[np.ndarray] = []
    for order in ORDERS if any(value.ndim > 2 for value in values) else ORDERS[:1]:
        orders = [order if order != "mixed" else ORDERS[index % 2] for index in range(len(values))]
        there = [put(engine, *each) for each in zip(values, orders, wide, strict=True)]
        with case(order), np.errstate(all="ignore"):
            if not expected:
                given = [get(engine, array) for array in there]
                call(PLAIN, *given)
                exact = zip(given[len(inputs) :], wide[len(inputs) :], strict=True)
                expected = [get(engine, put(engine, each, order, wide)) for each, wide in exact]  # -FLT_MAX may be -inf
            call(engine, *there)
            for ours, theirs in zip(there[len(inputs) :], expected, strict=True):
                largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1e-3)
                np.testing.assert_allclose(get(engine, ours), theirs, rtol=0, atol=times * DIGITS[math] * largest)


CONVOLUTIONS = [
    # n, c, size, m, kernel, stride, pad, dilation, group
    (4, 3, (35, 35), 32, (11, 11), (4, 4), (0, 0), (1, 1), 1),
    (2, 96, (13, 13), 64, (5, 5), (1, 1), (2, 2), (1, 1), 2),
    (3, 20, (12, 12), 50, (5, 5), (1, 1), (0, 0), (1, 1), 1),
    (2, 32, (9, 11), 32, (3, 3), (1, 1), (1, 1), (1, 1), 32),
    (4, 35, (13, 10), 40, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (3, 64, (15, 14), 33, (3, 3), (1, 1), (2, 0), (1, 1), 1),
    (8, 32, (5, 9), 32, (3, 3), (1, 1), (3, 1), (1, 1), 1),
    (2, 16, (15, 15), 24, (3, 3), (2, 1), (1, 0), (2, 2), 1),
    (2, 64, (14, 14), 128, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, 64, (14, 14), 128, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    (2, 6, (9, 9), 9, (3, 3), (1, 1), (1, 1), (1, 1), 3),
    (2, 8, (30,), 16, (5,), (2,), (1,), (1,), 1),
    (2, 8, (6, 7, 8), 16, (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), 1),
]


@pytest.mark.parametrize("geometry", CONVOLUTIONS, ids=str)
def test_convolution(engine: Any, geometry: Any) -> None:
    n, c, size, m, kernel, stride, pad, dilation, group = geometry
    windows = Windows(kernel, stride, pad, dilation)
    x, w, b = drawn(n, c, *size), drawn(m, c // group, *kernel), drawn(m)
    dy = drawn(n, m, *windows.convolved(size), seed=2)
    for relu in (False, True):

        def forward(e: Any, x: Any, w: Any, b: Any, y: Any, relu: bool = relu) -> None:
            e.convolution_forward(x, w, b, y, windows, group, relu)

        check(engine, [x, Wide(w), Wide(b)], [dy.shape], forward, 4)
        check(engine, [x, Wide(w)], [dy.shape], lambda e, x, w, y, call=forward: call(e, x, w, None, y), 4)

    def weights(e: Any, x: Any, dy: Any, once: Any, twice: Any) -> None:
        e.convolution_backward_weights(x, dy, once, windows, group, add=False)
        e.copy(once, twice)
        e.convolution_backward_weights(x, dy, twice, windows, group, add=True)

    def data(e: Any, dy: Any, w: Any, dx: Any) -> None:
        e.convolution_backward_data(dy, w, dx, windows, group)

    check(engine, [dy, Wide(w)], [x.shape], data, 4)
    check(engine, [x, dy], [Wide(w.shape)] * 2, weights, 4)


POOLINGS = [
    # size, kernel, stride, pad, output size: also clipped, beyond the padding, separate, whole, outside
    ((28, 28), (2, 2), (2, 2), (0, 0), (14, 14)),
    ((27, 27), (3, 3), (2, 2), (0, 0), (13, 13)),
    ((32, 32), (3, 3), (2, 2), (0, 0), (16, 16)),
    ((14, 14), (3, 3), (1, 1), (1, 1), (14, 14)),
    ((7, 7), (7, 7), (1, 1), (0, 0), (1, 1)),
    ((5, 5), (2, 2), (3, 3), (1, 1), (3, 3)),
    ((5, 7), (3, 2), (1, 2), (1, 0), (5, 4)),
    ((8, 8), (2, 2), (3, 3), (0, 0), (3, 3)),
    ((3, 3), (5, 4), (2, 2), (2, 3), (2, 3)),
]


@pytest.mark.parametrize("geometry", POOLINGS, ids=str)
@pytest.mark.parametrize("channels", [7, 32])
def test_pooling(engine: Any, geometry: Any, channels: int) -> None:
    size, kernel, stride, pad, output_size = geometry
    windows, shape = Windows(kernel, stride, pad, (1, 1)), (2, channels, *output_size)
    x, dy = np.round(drawn(2, channels, *size) * 4), drawn(*shape, seed=2)  # with many equal values
    x.reshape(-1)[5::11], x.reshape(-1)[3::17] = np.nan, -np.inf

    def largest(e: Any, x: Any, dy: Any, y: Any, forgetful: Any, dx: Any) -> None:
        memory = e.xp.empty(dy.shape, e.pool_memory(windows))
        e.max_pool_forward(x, y, memory, windows)
        e.max_pool_forward(x, forgetful, None, windows)
        e.max_pool_backward(dy, memory, dx, windows)

    def indices(e: Any, x: Any, dy: Any, wide: Any, y: Any, mask: Any, dx: Any, scattered: Any) -> None:
        e.max_pool_with_indices(x, y, mask, windows)
        e.index_backward(dy, mask, dx, windows)
        e.scatter_to_plane(wide, mask, scattered)

    def mean(e: Any, x: Any, dy: Any, y: Any, dx: Any) -> None:
        e.average_pool_forward(x, y, windows)
        e.average_pool_backward(dy, dx, windows)

    check(engine, [x, dy], [shape, shape, x.shape], largest, 4)
    check(engine, [x, dy, Wide(dy)], [shape, Wide(shape), x.shape, Wide(x.shape)], indices, 4)
    check(engine, [np.nan_to_num(x, neginf=1), dy], [shape, x.shape], mean, 4)


@pytest.mark.parametrize("channels", [7, 20, 32, 96])
@pytest.mark.parametrize(("size", "beta"), [(1, 0.75), (3, 0.75), (5, 0.75), (5, 0.5), (15, 0.75)])
def test_lrn(engine: Any, channels: int, size: int, beta: float) -> None:
    shape, numbers = (2, channels, 6, 5), (size, 0.3, beta, 2.0)

    def call(e: Any, x: Any, dy: Any, y: Any, forgetful: Any, dx: Any) -> None:
        memory = e.xp.empty((2 * e.lrn_memory, *shape[1:]), np.float32)
        e.lrn_forward(x, y, memory, *numbers)
        e.lrn_forward(x, forgetful, None, *numbers)
        e.lrn_backward(x, memory, dy, dx, *numbers)

    check(engine, [drawn(*shape) * 3, drawn(*shape, seed=2)], [shape] * 3, call, 2)


@pytest.mark.parametrize("shape", [(4, 7, 16, 15), (2, 32, 9, 7), (3, 4, 2, 2, 5), (40, 256)], ids=str)
@pytest.mark.parametrize(("affine", "relu"), [(False, False), (True, False), (True, True)])
def test_batch_norm(engine: Any, shape: Shape, affine: bool, relu: bool) -> None:
    x, dy, each = drawn(*shape) * 3 + 1, drawn(*shape, seed=2), Wide(shape[1:2])
    pair = [Wide(drawn(shape[1], seed=seed)) for seed in (3, 4)] if affine else []

    def call(e: Any, x: Any, dy: Any, *others: Any) -> None:
        scale, shift = others[: len(pair)] or (None, None)
        y, dx, mean, variance, *gradients = others[len(pair) :]
        norm = Normalizer(mean, variance, 1e-5, scale, shift, relu)
        e.batch_norm_moments(x, mean, variance)
        e.batch_norm_apply(x, y, norm)
        e.batch_norm_train_backward(x, dy, dx, norm, gradients)

    check(engine, [x, dy, *pair], [*[shape] * 2, each, each, *[each] * len(pair)], call, 2)


FORMULAS = (
    *(f"{name}(x)" for name in ("abs", "sign", "exp", "expm1", "tanh", "sigmoid", "logistic")),
    *(f"{name}(abs(x) + 0.5)" for name in ("log", "log1p", "sqrt")),
    *(f"x {sign} y" for sign in ("+", "-", "*", ">", ">=", "<", "<=")),
    *("max(x, y)", "min(x, y)", "max(x, 0.5)", "min(x, 0.5)", "max(0.5, x)", "min(0.5, x)", "x > 1", "1 >= x", "-x"),
    *(
        "x / (y + 9)",
        "2 / (abs(x) + 1)",
        "(x + 9) ** 1.7",
        "x ** 3",
        "(x + 9) ** -2",
        "x * (1 - y * y)",
        "0",
        "0.5 - x",
    ),
)


def bound(formula: Formula, arrays: Any) -> dict[str, Any]:
    return dict(zip(sorted(formula.names), arrays, strict=False))


@pytest.mark.parametrize("shape", [(4, 32, 9, 10), (2, 7, 5, 3), (2, 8, 3, 2, 5), (9, 40)], ids=str)
def test_value_by_value_and_by_channel(engine: Any, shape: Shape) -> None:
    a, b, c, channels = drawn(*shape), drawn(*shape, seed=2), drawn(*shape, seed=3), Wide(shape[1:2])
    scale, shift = (Wide(drawn(shape[1], seed=seed)) for seed in (4, 5))
    for slope in 0.0, 0.25, -1.5:
        check(engine, [a], [shape], lambda e, a, y, slope=slope: e.relu_forward(a, y, slope))
        check(engine, [a, b], [shape], lambda e, a, b, y, slope=slope: e.relu_backward(a, b, y, slope))
    if engine.half_dtype is None or engine.half_arithmetic:

        def by_signs(e: Any, a: Any, b: Any, y: Any) -> None:
            signs = e.xp.empty_like(a, dtype="uint8")
            e.pointwise(Formula("x > 0"), {"x": a}, signs)
            e.multiply(b, signs, y)

        check(engine, [a, b], [shape], by_signs)
    check(engine, [a], [shape], lambda e, a, y: e.weighted_sum([a], [-0.5], y))
    check(engine, [a, b, c], [shape], lambda e, a, b, c, y: e.weighted_sum([a, b, c], [1, -0.5, 2], y), 2)
    check(engine, [a, b], [shape], lambda e, a, b, y: e.multiply(a, b, y))
    for text in FORMULAS:
        formula, arrays = Formula(text), {"x": 4 * a, "y": b}
        named = [Wide(arrays[name]) for name in sorted(formula.names)]
        check(engine, named, [Wide(shape)], lambda e, *args, f=formula: e.pointwise(f, bound(f, args), args[-1]), 3)
    check(engine, [a, shift], [shape], lambda e, a, shift, y: (e.copy(a, y), e.add_bias(y, shift)), 2)
    check(engine, [a], [channels], lambda e, a, sums: e.copy(e.channel_sums(a), sums))
    check(engine, [a], [channels], lambda e, a, db: [e.bias_backward(a, db, add) for add in (False, True)])

    def scaled(e: Any, x: Any, dy: Any, scale: Any, shift: Any, y: Any, dx: Any, ds: Any, db: Any) -> None:
        e.scale_channels(x, y, scale, shift)
        e.scale_channels_backward(x, dy, dx, scale, ds, db)

    check(engine, [a, b, scale, shift], [shape, shape, channels, channels], scaled)


def test_sums_of_rows(engine: Any) -> None:
    def call(e: Any, a: Any, b: Any, sums: Any, products: Any) -> None:
        sums[...], products[...] = e.row_sums(a), e.row_sums(a, b)

    check(engine, [Wide(drawn(3, 150, 40)), Wide(drawn(3, 150, 40, seed=2))], [Wide((3, 40))] * 2, call)


@pytest.mark.parametrize(("positions", "values"), [((5000,), (3,)), ((4, 6), (300,)), ((70,), (3, 4, 5)), ((0,), (3,))])
def test_rows_are_added_in_their_order(engine: Any, positions: Shape, values: Shape) -> None:
    rows, target = drawn(*positions, *values), drawn(11, *values)
    indices, expected = np.random.default_rng(0).integers(0, 9, positions), target.copy()
    PLAIN.add_rows(rows, indices, expected)
    for order in ORDERS:
        from_, to = (put(engine, each, order, rows.ndim < 3) for each in (rows, target))
        if from_.dtype == np.float32:  # the indices of layers have gradients of no other type
            engine.add_rows(from_, engine.from_numpy(indices), to)
            np.testing.assert_array_equal(get(engine, to), expected)


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 40, 5, 6), 1), ((3, 40, 5, 6), 3), ((5, 1), 1), ((3, 1500), 1), ((4, 3), 0), ((9,), 0)]
)
def test_softmax(engine: Any, shape: Shape, axis: int) -> None:
    def call(e: Any, x: Any, dy: Any, y: Any, dx: Any) -> None:
        e.softmax_forward(x, y, axis)
        e.softmax_backward(y, dy, dx, axis)

    check(engine, [drawn(*shape) * 4, drawn(*shape, seed=2)], [shape, shape], call, 4)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 300, 70), (64, 1, 5), (64, 130, 10), (128, 160, 130), (7, 33, 1), (0, 5, 6), (1, 2048, 520), (16, 1030, 1021)],
)
def test_inner_product(engine: Any, m: int, k: int, n: int, transpose: bool) -> None:
    x, dy, w, b = drawn(m, k), drawn(m, n), drawn(*((k, n) if transpose else (n, k))), drawn(n)

    def weights(e: Any, x: Any, dy: Any, once: Any, twice: Any) -> None:
        e.inner_product_backward_weights(x, dy, once, transpose, add=False)
        e.copy(once, twice)
        e.inner_product_backward_weights(x, dy, twice, transpose, add=True)

    def forward(e: Any, x: Any, w: Any, b: Any, y: Any, plain: Any) -> None:
        e.inner_product_forward(x, w, b, y, transpose)
        e.inner_product_forward(x, w, None, plain, transpose)

    def data(e: Any, dy: Any, w: Any, dx: Any) -> None:
        e.inner_product_backward_data(dy, w, dx, transpose)

    check(engine, [x, Wide(w), Wide(b)], [dy.shape] * 2, forward)
    check(engine, [dy, Wide(w)], [x.shape], data)
    check(engine, [x, dy], [Wide(w.shape)] * 2, weights)
