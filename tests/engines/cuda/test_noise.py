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
from tests.engines.cuda.device_arrays import C_ORDER, CHANNELS_LAST, blank, on_device

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


def plain(x, ratio, scale, noise):
    engine = NumpyEngine()
    y, mask = np.empty_like(x), np.empty(x.shape, np.float32)
    engine.draw_mask(mask, noise_of(engine, x.shape, noise), ratio, scale)
    engine.apply_mask(x, mask, y, scale)
    return y


@pytest.mark.parametrize("noise", ["counter", "caffe"])
@pytest.mark.parametrize(("shape", "last"), LAYOUTS, ids=str)
def test_it_is_the_plain_dropout(shape, last, noise, cuda_engine):
    """Also where the types of activations are not those of their gradients."""
    engine = cuda_engine()
    layout = CHANNELS_LAST if last else C_ORDER
    mask = on_device(np.full(shape, 77), engine.mask_dtype, layout)
    engine.draw_mask(mask, noise_of(engine, shape, noise), 0.4, 1 / 0.6)
    assert set(np.unique(mask.get())) <= {0, 1}
    for types in (np.float32, np.float32), (np.float32, np.float16), (np.float16, np.float32):
        x, y = values(shape, types[0]), blank(shape, types[1], C_ORDER)
        engine.apply_mask(on_device(x, types[0], layout), mask, y, 1 / 0.6)
        np.testing.assert_array_equal(y.get(), plain(x.astype(np.float32), 0.4, 1 / 0.6, noise).astype(types[1]))


@pytest.mark.parametrize(("shape", "last"), [((4, 64), False), ((4, 6, 3, 5), True)], ids=str)
def test_a_recorded_pass_takes_each_iterations_mask(shape, last, cuda_engine):
    engine = cuda_engine()
    made, layout = noise_of(engine, shape), CHANNELS_LAST if last else C_ORDER
    x, mask = on_device(values(shape), np.float32, layout), on_device(values(shape), engine.mask_dtype, layout)
    y = engine.xp.empty_like(x)
    engine.stream.begin_capture()
    engine.draw_mask(mask, made, 0.5, 2.0)
    engine.apply_mask(x, mask, y, 2.0)
    graph = engine.stream.end_capture()
    for moment in (Moment(2, 3, 0), Moment(2, 3, 1), Moment(2, 4, 0), Moment(3, 4, 0)):
        made.context.begin_pass(moment)
        graph.launch(engine.stream)
        np.testing.assert_array_equal(y.get() != 0, made.keep_mask(shape, 0.5))
