"""The GPU's value-by-value operators, run by the emulator, against the plain ones in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda import elementwise, kernels
from fcaffe.engines.cuda.elementwise import Elementwise
from tests.engines.cuda import emulator
from tests.engines.cuda.device_arrays import OnStandIn
from tests.engines.cuda.stand_in_cupy import cupy, raw_module

pytestmark = pytest.mark.skipif(not emulator.has_compiler, reason="the emulator needs g++")

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
PAIRS = [(x, y) for x in DTYPES for y in DTYPES]
SHAPES = [(2, 5, 3, 7), (1, 1, 1, 1), (3, 64), (2, 16, 9, 9), (41,), (2, 8, 3, 2, 5)]
C_ORDER, CHANNELS_LAST = "C", "channels-last"


class Gpu(OnStandIn, Elementwise):
    pass


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads go round their loops."""
    for module in (kernels, elementwise):
        monkeypatch.setattr(module, "MOST_BLOCKS", 2)


class Guarded:
    """An array on the device inside a buffer whose other values must stay: `offset` values in front, some behind."""

    def __init__(self, values: np.ndarray, dtype: np.dtype, layout: str = CHANNELS_LAST, offset: int = 0) -> None:
        self.offset, self.size = offset, values.size
        self.buffer = cupy.full(offset + values.size + 19, 7, dtype)
        inside = self.buffer[offset : offset + values.size]
        if layout == CHANNELS_LAST and values.ndim > 2:
            shape = (values.shape[0], *values.shape[2:], values.shape[1])
            self.array = cupy.moveaxis(inside.reshape(shape), -1, 1)
        else:
            self.array = inside.reshape(values.shape)
        self.array[...] = cupy.asarray(values.astype(dtype))

    def get(self) -> np.ndarray:
        """In float32, once the guards have been looked at."""
        flat = self.buffer.get().astype(np.float32)
        assert (flat[: self.offset] == 7).all() and (flat[self.offset + self.size :] == 7).all()
        return self.array.get().astype(np.float32)


def numbers(shape: tuple[int, ...], dtype: np.dtype = DTYPES[0], seed: int = 0) -> np.ndarray:
    """What the dtype can hold, in float32; zeros of either sign among them."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    values.reshape(-1)[::7] = 0
    values.reshape(-1)[3::11] = -0.0
    return values.astype(dtype).astype(np.float32)


def rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return values.astype(dtype).astype(np.float32)


def launched(*names: str) -> bool:
    """Whether these kernels were launched since the last time, and no others."""
    seen = [name.split("<")[0] for name in raw_module.launches]
    raw_module.launches.clear()
    return seen == list(names)


PLAIN = NumpyEngine()
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_alignment = pytest.mark.parametrize("offset", [0, 1, 4])


@every_dtype
def test_relu_of_no_numbers(gpu: Gpu, dtype: np.dtype) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1, -1] * 5, np.float32)
    for slope in (0, 0.5):
        y, dx = np.empty_like(x), np.empty_like(x)
        with np.errstate(invalid="ignore"):
            PLAIN.relu_forward(x, y, slope)
            PLAIN.relu_backward(x, x, dx, slope)
        inside, outside = Guarded(x, dtype), Guarded(x, dtype)
        gpu.relu_forward(inside.array, outside.array, slope)
        np.testing.assert_array_equal(outside.get(), y)
        gpu.relu_backward(inside.array, inside.array, outside.array, slope)
        np.testing.assert_array_equal(outside.get(), dx)


@pytest.mark.usefixtures("few_blocks")
@every_dtype
def test_loops_of_threads(gpu: Gpu, dtype: np.dtype) -> None:
    x = numbers((3, 40, 13, 17), dtype)
    places = [Guarded(x, dtype), Guarded(x, dtype, offset=1), Guarded(x, DTYPES[0]), Guarded(x, DTYPES[0], C_ORDER)]
    target, turned = Guarded(x * 0, dtype), Guarded(x * 0, dtype, C_ORDER)
    for source in places:
        for goal in (target, turned):
            gpu.copy(source.array, goal.array)
            np.testing.assert_array_equal(goal.get(), x)
    gpu.copy(target.array[:, :24], turned.array[:, 16:])
    np.testing.assert_array_equal(turned.get()[:, 16:], x[:, :24])
    gpu.relu_forward(target.array, target.array, 0)
    np.testing.assert_array_equal(target.get(), np.maximum(x, 0))


@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
@each_alignment
def test_copy_of_the_same_layout(gpu: Gpu, dtypes: tuple[np.dtype, np.dtype], offset: int) -> None:
    for shape in SHAPES:
        x = numbers(shape, dtypes[0])
        source, target = Guarded(x, dtypes[0], offset=offset), Guarded(x * 0, dtypes[1], offset=offset)
        gpu.copy(source.array, target.array)
        assert launched("copy")
        np.testing.assert_array_equal(target.get(), rounded(x, dtypes[1]))


@every_dtype
def test_casts(gpu: Gpu, dtype: np.dtype) -> None:
    """Ties, subnormal numbers, what is too large, and no numbers, as NumPy rounds them."""
    random = np.random.default_rng(0).integers(0, 1 << 32, 5000, np.uint32)
    ties = (np.arange(1000, dtype=np.uint32) << 12) + 0x38000000
    special = np.array(
        [np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 65504, 65520, -65519.9, 6e-8, 2.9e-8, 3e-8], np.float32
    )
    values = np.concatenate([random.view(np.float32), ties.view(np.float32), special])
    target = Guarded(np.zeros(values.shape, np.float32), dtype)
    gpu.copy(cupy.asarray(values), target.array)
    with np.errstate(all="ignore"):
        expected = rounded(values, dtype)
    np.testing.assert_array_equal(target.get(), expected)
    if dtype != DTYPES[0]:
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        back = Guarded(np.zeros(every.shape, np.float32), DTYPES[0])
        gpu.copy(cupy.asarray(every), back.array)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(back.get(), every.astype(np.float32))


@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (3, 70, 9, 9), (2, 3, 12, 12)], ids=str)
def test_copy_between_c_order_and_channels_last(
    gpu: Gpu, dtypes: tuple[np.dtype, np.dtype], shape: tuple[int, ...]
) -> None:
    x = numbers(shape, dtypes[0])
    for layouts in ((C_ORDER, CHANNELS_LAST), (CHANNELS_LAST, C_ORDER)):
        for offset in (0, 1):
            source, target = Guarded(x, dtypes[0], layouts[0], offset), Guarded(x * 0, dtypes[1], layouts[1])
            gpu.copy(source.array, target.array)
            np.testing.assert_array_equal(target.get(), rounded(x, dtypes[1]))


@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
@pytest.mark.parametrize("layout", [C_ORDER, CHANNELS_LAST])
@pytest.mark.parametrize("part", [slice(0, 8), slice(8, 24), slice(3, 24), slice(5, 6), slice(0, 23)], ids=str)
def test_copy_of_channels(gpu: Gpu, dtypes: tuple[np.dtype, np.dtype], layout: str, part: slice) -> None:
    whole = numbers((3, 24, 5, 4), dtypes[0])
    big, small = Guarded(whole, dtypes[0], layout), Guarded(whole[:, part] * 0, dtypes[1], layout)
    gpu.copy(big.array[:, part], small.array)
    np.testing.assert_array_equal(small.get(), rounded(whole[:, part], dtypes[1]))
    back = Guarded(whole * 0 - 1, dtypes[0], layout)
    gpu.copy(small.array, back.array[:, part])
    expected = whole * 0 - 1
    expected[:, part] = rounded(rounded(whole[:, part], dtypes[1]), dtypes[0])
    np.testing.assert_array_equal(back.get(), expected)


def test_other_copies_are_plain(gpu: Gpu) -> None:
    x = numbers((4, 6, 5, 3))
    source = Guarded(x, DTYPES[0])
    for view in (np.s_[::-1], np.s_[:, :, ::2], np.s_[:, ::2, 1:, 1:], np.s_[0, 0, 0, 0]):
        target = cupy.asarray(x[view] * 0)
        gpu.copy(source.array[view], target)
        np.testing.assert_array_equal(target.get(), x[view])
    counts = cupy.asarray(np.arange(12, dtype=np.int32))
    target = cupy.zeros(12, np.float32)
    gpu.copy(counts, target)
    np.testing.assert_array_equal(target.get(), np.arange(12))


def check_bias_gradients(gpu: Gpu, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> None:
    dy, before = numbers(shape, dtype, 1), numbers(shape[1:2], seed=2)
    for add in (False, True):
        on_gpu, dbias, expected = Guarded(dy, dtype, offset=offset), Guarded(before, DTYPES[0]), before.copy()
        gpu.bias_backward(on_gpu.array, dbias.array, add)
        PLAIN.bias_backward(dy, expected, add)
        assert launched("bias_partials", "finish_sums")
        np.testing.assert_allclose(dbias.get(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("few_blocks")
@every_dtype
@pytest.mark.parametrize("shape", [(7, 24, 11, 11), (300, 6), (2, 300, 5, 5)], ids=str)
def test_bias_gradients_of_many_rows(gpu: Gpu, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    check_bias_gradients(gpu, dtype, shape, 0)


@every_dtype
def test_nothing_at_all(gpu: Gpu, dtype: np.dtype) -> None:
    """Arrays without values; the gradient of a bias that nothing was added to is zero."""
    x = Guarded(np.zeros((0, 4, 3, 3), np.float32), dtype).array
    gpu.relu_forward(x, x, 0.5)
    gpu.relu_backward(x, x, x, 0)
    gpu.weighted_sum([x, x], [1, 1], x)
    gpu.copy(x, x)
    gpu.copy(x, cupy.empty((0, 4, 3, 3), np.float32))
    gpu.add_bias(x, cupy.ones(4, np.float32))
    dbias = cupy.ones(4, np.float32)
    gpu.bias_backward(x, dbias, add=True)
    assert (dbias.get() == 1).all()
    gpu.bias_backward(x, dbias, add=False)
    assert launched() and not dbias.get().any()


@pytest.mark.parametrize("seed", range(40))
def test_slices_are_copied_by_words(gpu: Gpu, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of random lengths along a random axis, there and back; by 16 bytes at a time where channels fill these."""
    dice, dtype = np.random.default_rng(seed), (*DTYPES, np.dtype(np.uint8))[seed % 4]
    shape = [int(n) for n in dice.integers(1, 4, int(dice.integers(2, 6)))]
    unit = 16 // dtype.itemsize if seed % 3 else 1
    axis, lengths = int(dice.integers(len(shape))), [int(n) for n in dice.integers(1, 4, 3)]
    shape[1] *= unit
    lengths = [n * unit for n in lengths] if axis == 1 else lengths
    shape[axis] = sum(lengths)
    whole = dice.integers(0, 200, shape).astype(np.float32)
    pieces = np.split(whole, np.cumsum(lengths)[:-1], axis)
    there, given = Guarded(np.zeros(shape), dtype), [Guarded(piece, dtype) for piece in pieces]
    back = [Guarded(np.zeros(piece.shape), dtype) for piece in pieces]
    sizes: list[int] = []
    plain = elementwise.PlainElementwise.copy

    def copy(self: Gpu, x: object, y: object) -> None:
        sizes.append(x.itemsize)  # type: ignore[attr-defined]
        plain(self, x, y)

    monkeypatch.setattr(elementwise.PlainElementwise, "copy", copy)
    ends = np.cumsum(lengths)
    slices = [(slice(None),) * axis + (slice(end - n, end),) for end, n in zip(ends, lengths, strict=True)]
    for piece, part in zip(given, slices, strict=True):
        gpu.copy(piece.array, there.array[part])
    for piece, part in zip(back, slices, strict=True):
        gpu.copy(there.array[part], piece.array)
    np.testing.assert_array_equal(there.get(), whole)
    for ours, theirs in zip(back, pieces, strict=True):
        np.testing.assert_array_equal(ours.get(), theirs)
    assert unit == 1 or set(sizes) <= {16}


@every_dtype
@pytest.mark.parametrize("channels", [5, 16])
def test_bias_and_relu_in_one_kernel(gpu: Gpu, dtype: np.dtype, channels: int) -> None:
    y, bias = numbers((2, channels, 3, 3), dtype), numbers((channels,), seed=1)
    y[0, 0] = [[np.nan, np.inf, -np.inf]] * 3
    ours, expected = Guarded(y, dtype), y + bias[:, None, None]
    gpu.add_bias(ours.array, cupy.asarray(bias), relu=True)
    assert launched("add_bias")
    with np.errstate(invalid="ignore"):
        PLAIN.relu_forward(expected, expected, 0)
    np.testing.assert_array_equal(ours.get(), rounded(expected, dtype))
