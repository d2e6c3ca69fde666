"""The fused update against the plain rules, bit for bit; gradients that overflow; the scale of the loss."""

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda.update import CHUNK, RULES, LossScale, Part, Settings
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.rules.rule import _registry
from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.emulated_engine import DeviceEngine, EmulatedEngine
from tests.engines.cuda.emulator import EmulatedKernel, has_compiler

pytestmark = pytest.mark.skipif(not has_compiler, reason="no g++ to emulate kernels with")

SIZES = [3, 1, 5, 2 * CHUNK + 9, 0, 64, 7]  # of parameters, which so begin and end anywhere
SETTINGS = Settings(momentum=0.9, momentum2=0.999, delta=1e-8, rms_decay=0.98)
RATE, GAIN = 0.013, 0.25


def parts(decay):
    ends = np.cumsum(SIZES)
    starts = ends - SIZES
    return [
        Part(slice(int(start), int(end)), decay * (index % 3), (1.0, 2.0, 0.0, 0.1)[index % 4])
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def numbers(seed):
    random = np.random.default_rng(seed)
    values = random.standard_normal(sum(SIZES)).astype(np.float32)
    values[random.integers(0, len(values), 20)] = 0
    return values


def plain_update(rule, part, data, diff, history, regularization, rate=RATE, gain=GAIN):
    span, param = part.span, pb.SolverParameter(type=rule, regularization_type=regularization, **SETTINGS._asdict())
    diff[span] *= np.float32(gain)
    rate = np.float32(rate) * np.float32(part.lr_mult)
    slices = data[span], diff[span], [h[span] for h in history]
    _registry[rule](param, NumpyEngine()).decay_and_update(*slices, rate, part.decay)


def histories(rule):
    return [np.zeros(sum(SIZES), np.float32) for _ in range(2 if rule in ("AdaDelta", "Adam") else 1)]


@pytest.mark.parametrize("regularization", ["L1", "L2"])
@pytest.mark.parametrize("rule", RULES)
def test_it_is_the_plain_rule_bit_for_bit(rule, regularization):
    engine, steps = EmulatedEngine(), parts(0.004)
    table = engine.prepare_update(steps)
    engine.set_step(RATE, GAIN)
    data, history = numbers(1), histories(rule)
    wanted, wanted_history = data.copy(), [h.copy() for h in history]
    for seed in range(3):
        diff = numbers(10 + seed)
        wanted_diff = diff.copy()
        engine.update_all(rule, table, data, diff, history, SETTINGS, regularization == "L1")
        for part in steps:
            plain_update(rule, part, wanted, wanted_diff, wanted_history, regularization)
        np.testing.assert_array_equal(data.view(np.uint32), wanted.view(np.uint32))
        np.testing.assert_array_equal(diff.view(np.uint32), wanted_diff.view(np.uint32))
        for found, expected in zip(history, wanted_history, strict=True):
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def loss_scale(engine, fixed=None):
    return LossScale(engine.xp, engine.kernels, engine.overflow, fixed)


def test_nothing_to_update_starts_no_kernel(monkeypatch):
    """A launch of no blocks is an error in CUDA."""
    engine, started = EmulatedEngine(), []
    monkeypatch.setattr(EmulatedKernel, "__call__", lambda *_, **__: started.append(1))
    for sizes in ((), SIZES):
        count = sum(sizes)
        data, diff, history = (np.zeros(count, np.float32) for _ in range(3))
        table = engine.prepare_update([Part(slice(0, count), 0.0, 1.0)] if count else [])
        engine.update_all("SGD", table, data, diff, [history], SETTINGS, False)
        assert len(started) == bool(count)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 4097, sum(SIZES) - 1])
def test_an_overflow_leaves_the_update_out_and_halves_the_scale(bad, place):
    engine = EmulatedEngine()
    engine.loss_scale = scale = loss_scale(engine)
    table = engine.prepare_update(parts(0.004))
    engine.set_step(RATE, 1)
    data, diff, history = numbers(1), numbers(2), histories("SGD")
    before = data.copy()
    scale.check(diff)
    assert not engine.overflow[0]
    diff[place] = bad
    scale.check(diff)
    assert engine.overflow[0]
    engine.update_all("SGD", table, data, diff, history, SETTINGS, False)
    scale.adjust()
    np.testing.assert_array_equal(data, before)
    assert not history[0].any()
    assert (scale.scale[0], scale.inverse[0], scale._steps[1], engine.overflow[0]) == (2**15, 2.0**-15, 1, 0)


def test_the_update_undoes_the_scale():
    data, diff, history = numbers(1), numbers(2), histories("SGD")
    wanted, wanted_diff, wanted_history = data.copy(), diff.copy(), histories("SGD")
    for part in parts(0.004):
        plain_update("SGD", part, wanted, wanted_diff, wanted_history, "L2")
    engine = EmulatedEngine()
    engine.loss_scale = loss_scale(engine, 1024)
    engine.set_step(RATE, GAIN)
    diff *= 1024
    engine.update_all("SGD", engine.prepare_update(parts(0.004)), data, diff, history, SETTINGS, False)
    np.testing.assert_array_equal(data, wanted)


def test_the_scale_grows_after_good_updates_unless_it_is_fixed():
    engine = EmulatedEngine()
    grows, fixed = loss_scale(engine), loss_scale(engine, 128.0)
    for _ in range(grows.patience - 1):
        grows.adjust()
    assert grows.scale[0] == 2**16
    grows.adjust()
    assert (grows.scale[0], grows.inverse[0]) == (2**17, 2.0**-17)
    engine.overflow[0] = 1
    fixed.adjust()
    assert (fixed.scale[0], fixed._steps[1]) == (128, 1)
    slope = np.zeros((), np.float32)
    grows.apply([(slope, 0.5)])
    assert slope == 2**16


@pytest.fixture
def device(monkeypatch):
    stand_in_cupy.install(monkeypatch)
    yield DeviceEngine()
    stand_in_cupy.reset()


def test_a_recorded_update_takes_each_steps_rate_and_scale(device):
    device.loss_scale = scale = loss_scale(device)
    table = device.prepare_update(parts(0.004))
    data, diff, history = (device.xp.asarray(array) for array in (numbers(1), numbers(2), histories("SGD")[0]))
    slope = device.xp.zeros((), np.float32)
    stream = device.xp.cuda.Stream(non_blocking=True).use()
    stream.begin_capture()
    scale.apply([(slope, 1.0)])
    scale.check(diff)
    device.update_all("SGD", table, data, diff, [history], SETTINGS, False)
    scale.adjust()
    graph = stream.end_capture()

    wanted, wanted_history, bad = numbers(1), histories("SGD"), numbers(4)
    bad[777] = np.inf
    for rate, gradients, loss in ((0.1, numbers(3), 2**16), (0.2, bad, 2**16), (0.3, numbers(5), 2**15)):
        device.set_step(rate, 1)
        diff[...] = device.xp.asarray(gradients * np.float32(loss))
        graph.launch(stream)
        assert slope.get() == loss
        if gradients is not bad:
            for part in parts(0.004):
                plain_update("SGD", part, wanted, gradients, wanted_history, "L2", rate, 1)
        np.testing.assert_array_equal(data.get(), wanted)
