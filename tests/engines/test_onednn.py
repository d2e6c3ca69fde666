"""The oneDNN engine beside the plain one, on arrays large enough for its own code, and laid out in several ways."""

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine, cpu_engine, find_onednn
from fcaffe.engines.normalization import Normalizer
from fcaffe.engines.onednn.calls import OneDnnError
from fcaffe.engines.windows import Windows
from fcaffe.errors import UsageError

pytestmark = [
    pytest.mark.skipif(not find_onednn(), reason="needs onednn-cpu-gomp"),
    pytest.mark.usefixtures("all_threads"),
]

PLAIN = NumpyEngine()
CLOSE = 5e-6  # of the largest value: sums in other orders


@pytest.fixture(scope="module")
def fast():
    return cpu_engine(name="onednn")


def array(*shape, seed=1, channels_last=True):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
    if channels_last and len(shape) > 3:
        values = np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)
    return values


def assert_alike(ours, theirs, within=CLOSE):
    for mine, plain in zip(ours, theirs, strict=True):
        assert np.abs(mine - plain).max() <= within * max(1e-3, np.abs(plain).max())


def both(fast, call):
    """What `call(engine)` returns on the two engines."""
    return call(fast), call(PLAIN)


CONVOLUTIONS = [
    # n, c, size, m, kernel, stride, pad, dilation, group
    (4, 3, (35, 35), 32, (11, 11), (4, 4), (0, 0), (1, 1), 1),
    (2, 96, (13, 13), 64, (5, 5), (1, 1), (2, 2), (1, 1), 2),
    (3, 20, (12, 12), 50, (5, 5), (1, 1), (0, 0), (1, 1), 1),
    (2, 32, (9, 11), 32, (3, 3), (1, 1), (1, 1), (1, 1), 32),
    (2, 16, (15, 15), 24, (3, 3), (2, 1), (1, 0), (2, 2), 1),
    (2, 64, (14, 14), 128, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    (2, 8, (30,), 16, (5,), (2,), (1,), (1,), 1),
    (2, 8, (6, 7, 8), 16, (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(fast, case, bias):
    n, c, size, m, kernel, stride, pad, dilation, group = case
    windows = Windows(kernel, stride, pad, dilation)
    x, w = array(n, c, *size), array(m, c // group, *kernel, channels_last=False)
    b = array(m) if bias else None
    dy = array(n, m, *windows.convolved(size), seed=2)

    def run(engine):
        y, rectified, dx = np.empty_like(dy), np.empty_like(dy), np.empty_like(x)
        dw = np.full_like(w, np.nan)
        engine.convolution_forward(x, w, b, y, windows, group)
        engine.convolution_forward(x, w, b, rectified, windows, group, relu=True)
        engine.convolution_backward_data(dy, w, dx, windows, group)
        engine.convolution_backward_weights(x, dy, dw, windows, group, add=False)
        once = dw.copy()
        engine.convolution_backward_weights(x, dy, dw, windows, group, add=True)
        return [y, rectified, dx, once, dw]

    assert_alike(*both(fast, run))


POOLINGS = [
    # size, kernel, stride, pad, places
    ((28, 28), (2, 2), (2, 2), (0, 0), (14, 14)),
    ((27, 27), (3, 3), (2, 2), (0, 0), (13, 13)),
    ((32, 32), (3, 3), (2, 2), (0, 0), (16, 16)),  # the last window goes beyond the image
    ((14, 14), (3, 3), (1, 1), (1, 1), (14, 14)),
    ((7, 7), (7, 7), (1, 1), (0, 0), (1, 1)),
    ((5, 5), (2, 2), (3, 3), (1, 1), (3, 3)),  # the last window lies outside
]


@pytest.mark.parametrize("case", POOLINGS, ids=str)
@pytest.mark.parametrize("channels", [7, 32])
def test_pooling(fast, case, channels):
    size, kernel, stride, pad, places = case
    windows = Windows(kernel, stride, pad, (1, 1))
    x = np.round(array(3, channels, *size) * 4)  # with many equal values
    dy = array(3, channels, *places, seed=2)

    def run(engine):
        largest, mean, memory = (np.empty_like(dy) for _ in range(3))
        forgetful, back, back_of_mean = np.empty_like(dy), np.empty_like(x), np.empty_like(x)
        engine.max_pool_forward(x, largest, memory, windows)
        engine.max_pool_forward(x, forgetful, None, windows)
        engine.max_pool_backward(dy, memory, back, windows)
        with np.errstate(all="ignore"):
            engine.average_pool_forward(x, mean, windows)
            engine.average_pool_backward(dy, back_of_mean, windows)
        return [np.nan_to_num(values) for values in (largest, forgetful, back, mean, back_of_mean)]

    assert_alike(*both(fast, run))


@pytest.mark.parametrize("channels", [7, 20, 32, 96])
@pytest.mark.parametrize(("size", "beta"), [(1, 0.75), (3, 0.75), (5, 0.75), (7, 0.75), (5, 0.5), (15, 0.75)])
def test_lrn(fast, channels, size, beta):
    x, dy = array(2, channels, 6, 5) * 3, array(2, channels, 6, 5, seed=2)
    numbers = size, 0.3, beta, 2.0

    def run(engine):
        memory = np.empty((2 * engine.lrn_memory, channels, 6, 5), np.float32)
        y, forgetful, dx = (np.empty_like(x) for _ in range(3))
        engine.lrn_forward(x, y, memory, *numbers)
        engine.lrn_forward(x, forgetful, None, *numbers)
        engine.lrn_backward(x, y, memory, dy, dx, *numbers)
        return [y, forgetful, dx]

    assert_alike(*both(fast, run))


@pytest.mark.parametrize("channels", [7, 32])
@pytest.mark.parametrize(("affine", "relu"), [(False, False), (True, False), (True, True)])
def test_batch_norm(fast, channels, affine, relu):
    x, dy = array(4, channels, 16, 15) * 3 + 1, array(4, channels, 16, 15, seed=2)
    x = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    pair = (array(channels, seed=3), array(channels, seed=4)) if affine else ()

    def run(engine):
        y, applied, added, dx = (np.empty_like(x) for _ in range(4))
        mean, variance = np.empty((2, channels), np.float32)
        memory = np.empty(x.size // 4 + 1, np.float32)
        gradients = tuple(np.empty_like(each) for each in pair)
        engine.batch_norm_moments(x, mean, variance)
        norm = Normalizer(mean, variance, 1e-5, *(pair or (None, None)), relu)
        engine.batch_norm_train(x, y, norm, memory)
        engine.batch_norm_train_backward(x, dy, dx, norm, gradients, memory)
        engine.batch_norm_apply(x, applied, norm)
        engine.batch_norm_add_relu(x, dy, added, norm._replace(relu=False))
        return [y, mean, variance, dx, applied, added, *gradients]

    assert_alike(*both(fast, run))


LAYOUTS = [(True, True), (True, False), (False, False)]


@pytest.mark.parametrize(("first", "second"), LAYOUTS)
def test_value_by_value(fast, first, second):
    shape = 4, 32, 9, 10
    a, b = array(*shape, channels_last=first), array(*shape, seed=2, channels_last=second)

    def run(engine):
        rectified, leaky, back, total, both_rectified, product, copied = (np.empty_like(b) for _ in range(7))
        engine.relu_forward(a, rectified, 0.0)
        engine.relu_forward(a, leaky, 0.1)
        engine.relu_backward(leaky, b, back, 0.1)
        engine.weighted_sum([a, b, a], [1.0, -0.5, 2.0], total)
        engine.add_relu(a, b, both_rectified)
        engine.multiply(a, b, product)
        engine.copy(a, copied)
        return [rectified, leaky, back, total, both_rectified, product, copied]

    assert_alike(*both(fast, run), within=5e-7)


@pytest.mark.parametrize(("first", "second"), LAYOUTS)
def test_a_sum_of_two_has_the_bits_of_additions(fast, first, second):
    a, b = array(4, 32, 9, 10, channels_last=first), array(4, 32, 9, 10, seed=2, channels_last=second)
    a[0, 0], b[0, :2] = -0.0, -0.0
    a[1, 0, :, 0], b[1, 1, 0] = np.inf, -np.inf
    total = np.empty_like(a)
    fast.weighted_sum([a, b], [1.0, 1.0], total)
    assert total.tobytes() == (a + b).tobytes()


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 300, 70), (64, 1, 5), (64, 130, 10), (7, 33, 1), (0, 5, 6), (1, 2048, 520), (16, 1030, 1021)]
)
def test_inner_product(fast, m, k, n, transpose):
    x, dy, w, b = array(m, k), array(m, n), array(*((k, n) if transpose else (n, k))), array(n)

    def run(engine):
        y, dx, dw = np.empty_like(dy), np.empty_like(x), np.full_like(w, np.nan)
        engine.inner_product_forward(x, w, b, y, transpose)
        engine.inner_product_backward_data(dy, w, dx, transpose)
        engine.inner_product_backward_weights(x, dy, dw, transpose, add=False)
        once = dw.copy()
        engine.inner_product_backward_weights(x, dy, dw, transpose, add=True)
        return [np.append(values, 0) for values in (y, dx, once, dw)]

    assert_alike(*both(fast, run))


def test_softer_products_are_near(fast):
    if not fast.library.has_bf16():
        pytest.skip("needs a processor that multiplies bfloat16 numbers")
    soft = cpu_engine("bf16", "onednn")
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1))
    x, w, dy = array(2, 32, 12, 12), array(48, 32, 3, 3, channels_last=False), array(2, 48, 12, 12, seed=2)

    def run(engine):
        y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)
        engine.convolution_forward(x, w, None, y, windows, 1)
        engine.convolution_backward_data(dy, w, dx, windows, 1)
        engine.convolution_backward_weights(x, dy, dw, windows, 1, add=False)
        return [y, dx, dw]

    exact, rounded = run(fast), run(soft)
    assert_alike(rounded, exact, within=1e-2)
    assert all(np.abs(a - b).max() > 1e-5 for a, b in zip(exact, rounded, strict=True))


def test_weights_are_reordered_once_while_they_are_fixed(fast):
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1))
    x, w = array(2, 32, 12, 12), array(48, 32, 3, 3, channels_last=False)
    y, later = np.empty((2, 12, 12, 48), np.float32).transpose(0, 3, 1, 2), array(2, 48, 12, 12)
    with fast.fixed_weights():
        fast.convolution_forward(x, w, None, y, windows, 1)
        kept = len(fast.cache._entries)
        w *= 2
        fast.convolution_forward(x, w, None, later, windows, 1)
        assert np.array_equal(y, later) and len(fast.cache._entries) == kept
    fast.convolution_forward(x, w, None, later, windows, 1)
    assert_alike([2 * y], [later])


def test_the_same_bits_each_time(fast):
    windows = Windows((5, 5), (1, 1), (2, 2), (1, 1))
    x, dy, w = array(8, 96, 27, 27), array(8, 64, 27, 27, seed=2), np.empty((64, 96, 5, 5), np.float32)
    results = []
    for _ in range(4):
        fast.convolution_backward_weights(x, dy, w, windows, 1, add=False)
        results.append(w.copy())
    assert all(np.array_equal(result, results[0]) for result in results)


def test_without_the_library(monkeypatch):
    monkeypatch.setattr("fcaffe.engines.find_onednn", lambda: None)
    assert cpu_engine().name == "NumPy"
    for math, name in (("fp32", "onednn"), ("bf16", "")):
        with pytest.raises(UsageError, match="pip install onednn-cpu-gomp"):
            cpu_engine(math, name)


def test_a_library_that_is_none(tmp_path, monkeypatch):
    file = tmp_path / "libdnnl.so.3"
    file.write_bytes(b"no library")
    monkeypatch.setattr("fcaffe.engines.find_onednn", lambda: str(file))
    with pytest.raises(OneDnnError, match=r"cannot be used as oneDNN: .*--engine numpy"):
        cpu_engine()


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    "shape", [(2, 64, 12, 11), (16, 3, 31, 30), (2, 600, 5, 5), (3, 7, 5, 4, 9), (5, 17, 701)], ids=str
)
def test_steps_along_channels_round_as_numpy_does(fast, shape, channels_last):
    """Each on its own, so that whoever does them in another place gets the same bits."""
    x = array(*shape, channels_last=channels_last)
    mean, scale, shift = (array(shape[1], seed=seed) for seed in (2, 3, 4))

    def run(engine):
        made = []
        for relu in False, True:
            y, z = np.empty_like(x), np.empty_like(x)
            engine.batch_norm_apply(x, y, Normalizer(mean, scale**2, 1e-5, relu=relu))
            engine.scale_channels(x, z, scale, shift, relu)
            made += [y, z]
        return made

    for ours, numpys in zip(*both(fast, run), strict=True):
        np.testing.assert_array_equal(ours, numpys)


@pytest.mark.parametrize("stride", [(1, 2), (2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 64, 14, 13), (1, 64, 15, 14), (3, 40, 1, 31)])
def test_copies_of_every_so_many_th_place(fast, shape, stride):
    """Also where oneDNN has no descriptor of such an array."""
    x = array(*shape)
    x[0, :, 0] = np.nan
    few = x[:, :, :: stride[0], :: stride[1]]
    y = np.moveaxis(np.empty((shape[0], *few.shape[2:], shape[1]), np.float32), -1, 1)
    fast.copy(few, y)
    np.testing.assert_array_equal(y, few)
