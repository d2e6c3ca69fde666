"""Dropout's kernels make the masks of the counter stream, bit for bit, in any layout and type."""

from types import SimpleNamespace

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.net import Blob, Context
from fcaffe.net.noise import Noise
from fcaffe.net.placements import Shard
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.rng.counter import Moment
from fcaffe.share import Share
from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.emulated_engine import DeviceEngine, EmulatedEngine, channels_last
from tests.engines.cuda.emulator import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler, reason="no g++ to emulate kernels with")

MOMENT = Moment(2**34 + 1, 2**33 + 5, 2**35 + 3)
SHAPES = [(3, 40), (5,), (2, 7, 3, 5), (2, 16, 1, 1), (2, 3, 7, 9), (1, 2, 2, 3, 2), (2, 5, 4, 8), (0, 4)]
LAYOUTS = [(shape, last) for shape in SHAPES for last in (False, True)[: 1 + (len(shape) > 3)]]  # channels-last or not


def noise_of(engine, shape, noise="counter"):
    """The noise of a layer whose rows begin at sample 70 of a batch of all workers."""
    context = Context(engine, CaffeRandom(3), noise, seed=2**64 + 12345)
    context.share = Share(70, shape[0], 10_000)
    layer, blob = SimpleNamespace(context=context, key="drop"), Blob(np, shape)
    blob.placement = Shard(0, 10_000)
    context.workers = Others(shape[0])
    context.begin_pass(MOMENT)
    return Noise(layer, blob)


class Others(Workers):
    size = 2

    def __init__(self, count):
        self.count = count

    def part(self, samples):
        return Share(70, self.count, samples)


def values(shape, dtype=np.float32):
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def mask_of(engine, x, last):
    mask = np.full(x.shape, 77, engine.mask_dtype)
    return channels_last(mask) if last else mask


def plain(x, dy, ratio, scale, noise="counter"):
    engine = NumpyEngine()
    y, dx, mask = np.empty_like(x), np.empty_like(x), np.empty(x.shape, np.float32)
    engine.draw_mask(mask, noise_of(engine, x.shape, noise), ratio, scale)
    engine.apply_mask(x, mask, y, scale)
    engine.apply_mask(dy, mask, dx, scale)
    return y, dx


@pytest.mark.parametrize("noise", ["counter", "caffe"])
@pytest.mark.parametrize(("shape", "last"), LAYOUTS, ids=str)
def test_it_is_the_plain_dropout(shape, last, noise):
    engine, x, dy = EmulatedEngine(), values(shape), values(shape) + 1
    wanted_y, wanted_dx = plain(x, dy, 0.4, 1 / 0.6, noise)
    if last:
        x, dy = channels_last(x), channels_last(dy)
    y, dx, mask = np.empty_like(x), np.empty_like(x), mask_of(engine, x, last)
    engine.draw_mask(mask, noise_of(engine, shape, noise), 0.4, 1 / 0.6)
    engine.apply_mask(x, mask, y, 1 / 0.6)
    engine.apply_mask(dy, mask, dx, 1 / 0.6)
    np.testing.assert_array_equal(y, wanted_y)
    np.testing.assert_array_equal(dx, wanted_dx)
    assert set(np.unique(mask)) <= {0, 1}


@pytest.mark.parametrize("types", [(np.float32, np.float16), (np.float16, np.float32)])
def test_other_layouts_and_types_than_the_masks(types):
    engine, x = EmulatedEngine(), values((2, 7, 3, 5)).astype(types[0])
    wanted, wanted_dx = plain(x.astype(np.float32), x.astype(np.float32), 0.5, 2)
    y, dx, mask = np.zeros((2, 7, 3, 5), types[1]), np.zeros((2, 14, 3, 5), types[1])[:, ::2], mask_of(engine, x, True)
    engine.draw_mask(mask, noise_of(engine, x.shape), 0.5, 2.0)
    engine.apply_mask(x, mask, y, 2.0)
    engine.apply_mask(x, mask, dx, 2.0)
    np.testing.assert_array_equal(y, wanted.astype(types[1]))
    np.testing.assert_array_equal(dx, wanted_dx.astype(types[1]))


@pytest.fixture
def device(monkeypatch):
    stand_in_cupy.install(monkeypatch)
    yield DeviceEngine()
    stand_in_cupy.reset()


@pytest.mark.parametrize(("shape", "last"), [((4, 64), False), ((4, 6, 3, 5), True)], ids=str)
def test_a_recorded_pass_takes_each_iterations_mask(device, shape, last):
    made, order = noise_of(device, shape), channels_last if last else np.ascontiguousarray
    x = device.xp.asarray(order(values(shape)))
    mask, y = device.xp.empty_like(x, dtype=device.mask_dtype), device.xp.empty_like(x)
    stream = device.xp.cuda.Stream(non_blocking=True).use()
    stream.begin_capture()
    device.draw_mask(mask, made, 0.5, 2.0)
    device.apply_mask(x, mask, y, 2.0)
    graph = stream.end_capture()
    for moment in (Moment(2, 3, 0), Moment(2, 3, 1), Moment(2, 4, 0), Moment(3, 4, 0)):
        made.context.begin_pass(moment)
        graph.launch(stream)
        np.testing.assert_array_equal(y.get() != 0, made.keep_mask(shape, 0.5))
