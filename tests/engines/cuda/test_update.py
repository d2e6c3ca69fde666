"""The fused update against the plain rules, bit for bit; gradients that overflow; the scale of the loss."""

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda import update
from fcaffe.engines.cuda.update import CHUNK, RULES, Part, Settings
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.rules import _registry
from tests.engines.cuda.device_arrays import launched

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
def test_it_is_the_plain_rule_bit_for_bit(rule, regularization, cuda_engine):
    engine, steps = cuda_engine(), parts(0.004)
    table = engine.prepare_update(steps)
    engine.set_step(RATE, GAIN)
    expected = [numbers(1), None, *histories(rule)]
    there = [engine.xp.asarray(each if each is not None else numbers(1)) for each in expected]
    for seed in range(3):
        expected[1] = numbers(10 + seed)
        there[1][...] = engine.xp.asarray(expected[1])
        data, diff, *history = there
        engine.update_all(rule, table, data, diff, history, SETTINGS, regularization == "L1")
        data, diff, *history = expected
        for part in steps:
            plain_update(rule, part, data, diff, history, regularization)
        for ours, theirs in zip(there, expected, strict=True):
            np.testing.assert_array_equal(ours.get().view(np.uint32), theirs.view(np.uint32))


def test_nothing_to_update_starts_no_kernel(cuda_engine):
    """A launch of no blocks is an error in CUDA."""
    engine = cuda_engine()
    nothing = engine.xp.zeros(0, np.float32)
    engine.update_all("SGD", engine.prepare_update([]), nothing, nothing, [nothing], SETTINGS, False)
    assert not launched()


@pytest.mark.parametrize("fixed", [None, 128.0])
def test_the_scale_halves_after_an_overflow_and_grows_after_good_updates(fixed, cuda_engine, monkeypatch):
    """Unless it is fixed. An update whose gradients overflow changes nothing, and others undo the scale."""
    monkeypatch.setattr(update, "PATIENCE", 3)
    engine = cuda_engine(math="fp16", loss_scale=fixed)
    table, wanted, wanted_history = engine.prepare_update(parts(0.004)), numbers(1), histories("SGD")
    data, history = (engine.xp.asarray(array) for array in (numbers(1), histories("SGD")[0]))
    engine.set_step(RATE, GAIN)
    skipped = 0
    for bad, index, factor in (
        *((0, 0, factor) for factor in (1, 1, 2)),
        *((np.inf, 0, 1), (-np.inf, 4097, 0.5), (np.nan, sum(SIZES) - 1, 0.25)),
        *((0, 0, factor) for factor in (0.25, 0.25, 0.5, 0.5)),
    ):
        gradients = numbers(2)
        scaled = gradients * engine.gradient_scale()
        scaled[index] += np.float32(bad)
        engine.update_all("SGD", table, data, engine.xp.asarray(scaled), [history], SETTINGS, False)
        if bad:
            skipped += 1
        else:
            for part in parts(0.004):
                plain_update("SGD", part, wanted, gradients, wanted_history, "L2")
        np.testing.assert_array_equal(data.get(), wanted)
        assert engine.gradient_scale() == (fixed or update.FIRST * factor) == 1 / float(engine.loss_scale[1])
        assert int(engine.steps[1]) == skipped and not engine.overflow.get()


def test_a_recorded_update_takes_each_steps_rate_and_scale(cuda_engine):
    """An overflow leaves it out."""
    engine = cuda_engine(math="fp16")
    table = engine.prepare_update(parts(0.004))
    data, diff, history = (engine.xp.asarray(array) for array in (numbers(1), numbers(2), histories("SGD")[0]))
    slope = engine.xp.zeros((), np.float32)
    engine.stream.begin_capture()
    engine.scale_losses([(slope, 1.0)])
    engine.update_all("SGD", table, data, diff, [history], SETTINGS, False)
    graph = engine.stream.end_capture()

    wanted, wanted_history, bad = numbers(1), histories("SGD"), numbers(4)
    bad[777] = np.inf
    for rate, gradients, loss in ((0.1, numbers(3), 2**16), (0.2, bad, 2**16), (0.3, numbers(5), 2**15)):
        engine.set_step(rate, 1)
        diff[...] = engine.xp.asarray(gradients * np.float32(loss))
        graph.launch(engine.stream)
        assert slope.get() == loss
        if gradients is not bad:
            for part in parts(0.004):
                plain_update("SGD", part, wanted, gradients, wanted_history, "L2", rate, 1)
        np.testing.assert_array_equal(data.get(), wanted)
