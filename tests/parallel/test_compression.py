"""Compressed gradients: nothing is lost, every rank gets the same bits, and bytes are as the scheme says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fcaffe.engines import cpu_engine
from fcaffe.errors import FcaffeError, SolverError, UsageError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from fcaffe.solvers.snapshot import saving
from fcaffe.solvers.snapshot.files import read_state
from tests.parallel.conftest import needs_mpi, run_ranks

MPI = pytest.importorskip("mpi4py.MPI", reason="needs the extra fcaffe[mpi]")

from fcaffe.parallel.compression import make_compression  # noqa: E402
from fcaffe.parallel.compression.sixteen_bit import Bf16, Fp16  # noqa: E402
from fcaffe.parallel.compression.topk import TopK  # noqa: E402
from fcaffe.parallel.exchange import ReducingExchange  # noqa: E402

ALONE = MPI.COMM_SELF
EXACT = ["fp16", "bf16", "topk:density=0.3,warmup=0", "topk:density=1"]
ROUNDED = ["onebit:chunk=7", "onebit"]
SCHEMES = ["fp16", "bf16", "onebit:chunk=7", "topk:density=0.2,warmup=0"]


def gradients(largest: float) -> Any:
    """Two gradients of one length."""
    values = st.floats(-largest, largest, width=32)
    return st.integers(0, 70).flatmap(lambda n: arrays(np.float32, (2, n), elements=values))


def compressed(scheme: str, steps: np.ndarray) -> Any:
    """(sent, residual, accumulated) of each step, the last being gradient + last residual, rounded to float32."""
    compression = make_compression(scheme, ALONE)
    buffer = compression.allocate(steps.shape[1])
    if isinstance(compression, TopK):
        compression.set_momentum(0.5, -1)
    for step in steps:
        before = compression.residual.copy()
        if isinstance(compression, TopK):
            accumulated = (compression.velocity * np.float32(0.5) + step) + before
        else:
            accumulated = step + before
        buffer[...] = step
        compression.sum(buffer)
        yield buffer.copy(), compression.residual.copy(), accumulated
    assert compression.bytes_sent == 0 and compression.ratio == 1


@pytest.mark.parametrize("scheme", [*EXACT, *ROUNDED])
@given(steps=gradients(2.0**14))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_but_one_rounding(scheme: str, steps: np.ndarray) -> None:
    for sent, residual, accumulated in compressed(scheme, steps):
        error = np.abs(sent.astype(np.float64) + residual - accumulated)
        larger = np.maximum(np.abs(sent), np.abs(accumulated)).astype(np.float64)
        assert (error <= (scheme in ROUNDED) * (2.0**-24 * larger + 2.0**-150)).all()


@given(values=arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)))
@settings(deadline=None)
def test_rounding_to_16_bits(values: np.ndarray) -> None:
    half, brain = Fp16(ALONE), Bf16(ALONE)
    words, decoded = np.empty(values.size, np.uint16), np.empty_like(values)
    with np.errstate(all="ignore"):
        inside = np.clip(values, -65504, 65504)
        half.encode(values, words)
        expected = inside.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(half.decode(words, decoded), expected)
        brain.encode(values, words)
    brain.decode(words, decoded)
    number = ~np.isnan(values)
    assert (np.abs(decoded[number]) <= brain.largest).all()
    inside = np.clip(values, -brain.largest, brain.largest)[number].astype(np.float64)
    error = np.abs(decoded[number] - inside)
    for neighbour in (words[number] - np.uint16(1), words[number] + np.uint16(1)):
        other = np.abs(brain.decode(neighbour, np.empty_like(values[number])) - inside)
        assert (np.isnan(other) | (error < other) | ((error == other) & (words[number] % 2 == 0))).all()


def test_sixteen_bits_of_what_is_too_large_come_later() -> None:
    compression = make_compression("fp16", ALONE)
    buffer = compression.allocate(2)
    sums = []
    for step in ([1e5, -3e5], [0, 0], [0, 0], [0, 0], [0, 0]):
        buffer[...] = step
        compression.sum(buffer)
        sums.append(buffer.copy())
    assert sums[0].tolist() == [65504, -65504] and sums[1].tolist() == [1e5 - 65504, -65504]
    assert np.sum(sums, axis=0).tolist() == [1e5, -3e5] and not compression.residual.any()


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_nothing_is_lost_when_a_resumed_run_has_other_buckets(data: Any) -> None:
    """Of whole numbers all additions are exact, so what was sent and what is kept are what came in, to the last bit."""
    received, sent, state = np.zeros(40), np.zeros(40), None
    numbers = st.lists(st.integers(-4000, 4000), min_size=40, max_size=40)
    for _ in range(data.draw(st.integers(1, 3))):
        cuts = sorted({0, *data.draw(st.lists(st.integers(1, 39), max_size=5)), 40})
        compression = make_compression(data.draw(st.sampled_from(["bf16", "fp16"])), ALONE)
        buffer = compression.allocate(40)
        if state:
            compression.restore_state(state)
        for step in data.draw(st.lists(numbers, max_size=2)):
            received += step
            buffer[...] = step
            for start, stop in reversed(list(itertools.pairwise(cuts))):
                compression.sum(buffer[start:stop])
            sent += buffer
        state = {name: array.copy() for name, array in compression.state().items()}
        assert np.array_equal(sent + state["residual"], received)


def test_a_slice_has_a_residual_of_its_own() -> None:
    compression = make_compression("topk:density=0.1,warmup=0", ALONE)
    buffer = compression.allocate(10)
    buffer[...] = np.arange(10)
    compression.sum(buffer[4:])
    compression.sum(buffer[:4])
    assert np.flatnonzero(buffer).tolist() == [3, 9]
    assert compression.residual.tolist() == [0, 1, 2, 0, 4, 5, 6, 7, 8, 0]
    with pytest.raises(ValueError, match="no slice of the one that `allocate` gave"):
        compression.sum(np.zeros(4, np.float32))
    with pytest.raises(FcaffeError, match="flat, contiguous float32"):
        compression.sum(buffer[::2])


def test_onebit_sends_the_means_of_both_signs() -> None:
    compression = make_compression("onebit:chunk=4", ALONE)
    buffer = compression.allocate(6)
    buffer[...] = [1, -2, 3, -6, 5, 0]
    compression.sum(buffer)
    assert buffer.tolist() == [2, -4, 2, -4, 2.5, 2.5]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_values_that_are_not_finite_are_sent_once_and_not_kept(scheme: str, data: Any) -> None:
    """They arrive as values that are not finite, at their index alone. The state stays finite, so later sums are."""
    compression = make_compression(scheme, ALONE)
    buffer = compression.allocate(60)
    odd = st.sampled_from([np.nan, np.inf, -np.inf])
    bad = data.draw(st.dictionaries(st.integers(0, 59), odd, min_size=1, max_size=3))
    random = np.random.default_rng(data.draw(st.integers(0, 100)))
    for step in range(4):
        buffer[...] = random.normal(size=60)
        if step == 1:
            buffer[list(bad)] = list(bad.values())
        compression.sum(buffer[25:])
        compression.sum(buffer[:25])
        assert set(np.flatnonzero(~np.isfinite(buffer))) == (set(bad) if step == 1 else set())
        assert all(np.isfinite(array).all() for array in compression.state().values())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("value", "on_nan", "last"), [(np.nan, "stop", True), (-np.inf, "continue", False)])
def test_one_gradient_that_is_not_finite_ends_the_run(scheme: str, value: float, on_nan: str, last: bool) -> None:
    """As it does without compression. A run that goes on all the same keeps nothing of it in the residual."""

    class Poisoned(ReducingExchange):
        def finish(self) -> None:
            if solver.iteration == (3 if last else 1):
                self._gradients[0] = value
            super().finish()

    solver = solver_with(scheme, more="max_iter: 4")
    solver.nan_policy.on_nan = on_nan
    solver.exchange = Poisoned(make_compression(scheme, ALONE), overlap=False)
    solver.diff = solver.exchange.allocate(np, 1)
    solver.net.parameters.flatten(solver.data, solver.diff)
    if on_nan == "stop":
        with pytest.raises(SolverError, match=r"iteration \d: .* is not finite"):
            solver.solve()
    else:
        solver.solve()
        assert solver.iteration == 4 and not np.isfinite(solver.data).any()
    if last:
        assert all(np.isfinite(array).all() for array in solver.exchange.state().values())


def test_topk_follows_the_paper() -> None:
    """Momentum before the choice, both sums cleared where something is sent, a limit for each worker's own norm."""
    compression = make_compression("topk:density=0.5,warmup=0", ALONE)
    buffer = compression.allocate(2)
    compression.set_momentum(0.5, 10)  # type: ignore[attr-defined]
    for step, sent in (([4, 3], [4, 0]), ([1, 0], [0, 4.5]), ([8, 0], [9.5, 0]), ([30, 40], [0, 8])):
        buffer[...] = step
        compression.sum(buffer)
        assert buffer.tolist() == sent
    assert compression.residual.tolist() == [6, 0]


@pytest.mark.parametrize(
    ("options", "densities"),
    [
        ("density=0.001,warmup=8", [0.25] * 2 + [0.0625] * 2 + [0.015625] * 2 + [0.00390625] * 2 + [0.001] * 2),
        ("density=0.01,warmup=3", [0.25, 0.0625, 0.015625, 0.01, 0.01]),
        ("density=0.25,warmup=3", [0.25, 0.25]),
        ("density=0.5", [0.5, 0.5]),
        ("density=0.001,warmup=0", [0.001]),
    ],
)
def test_warm_up(options: str, densities: list[float]) -> None:
    compression = make_compression(f"topk:{options}", ALONE)
    assert isinstance(compression, TopK)
    buffer = compression.allocate(8)
    for density in densities:
        assert compression.density == density
        compression.sum(buffer[3:])
        compression.sum(buffer[:3])


def solver_with(scheme: str, kind: str = "SGD", more: str = "") -> Solver:
    """Of a net with one weight w, whose gradient is 3."""
    text = f"""type: "{kind}" base_lr: 0.5 lr_policy: "fixed" snapshot_after_train: false {more} net_param {{
        layer {{ name: "in" type: "DummyData" top: "x" dummy_data_param {{ shape {{ dim: 1 dim: 1 }}
                 data_filler {{ value: 3 }} }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "loss" loss_weight: 1
                 inner_product_param {{ num_output: 1 bias_term: false weight_filler {{ value: 2 }} }} }} }}"""
    exchange = ReducingExchange(make_compression(scheme, ALONE))
    return Solver(parse_text(text, pb.SolverParameter), cpu_engine(), exchange=exchange)


def test_the_solver_lends_its_momentum_and_clipping() -> None:
    """Here all is sent at once, so that the gradients' momentum is cleared at each step; the decay has its own."""
    solver = solver_with("topk:density=1", more="momentum: 0.5 weight_decay: 0.25 clip_gradients: 2")
    weight, history = 2.0, 0.0
    for _ in range(3):
        solver.step(1)
        history = 0.5 * history + 0.5 * 0.25 * weight
        weight -= history + 0.5 * 2
        assert solver.data.tolist() == [weight]
    assert solver.exchange.bucket == float("inf")  # type: ignore[attr-defined]
    with pytest.raises(SolverError, match="solver type Nesterov does not go with"):
        solver_with("topk", "Nesterov", "momentum: 0.5")
    solver_with("fp16", "Nesterov", "momentum: 0.5").step(1)


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_residuals_that_protobuf_cannot_hold(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if form == "HDF5":
        pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")
    monkeypatch.setattr(saving, "LARGEST", 0)  # instead of 2 GiB
    solver = solver_with("onebit", more=f'snapshot_prefix: "{tmp_path}/x" snapshot_format: {form}')
    solver.step(1)
    owners = {array.owner for array in read_state(solver.snapshot()).carried}
    assert ("exchange" in owners) == (form == "HDF5")
    assert ("without the residuals of --compress" in capfd.readouterr().err) == (form == "BINARYPROTO")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gzip",
            "unknown scheme 'gzip'; known ones: fp16, bf16, onebit:chunk=512, topk:density=0.001,warmup=500",
        ),
        ("", "unknown scheme ''"),
        ("fp16:tau=1", "'tau=1' is no option=value that fp16 knows; it takes no options"),
        ("topk:rate=1", "'rate=1' is no option=value that topk knows; it takes density=VALUE, warmup=VALUE"),
        ("topk:density", "'density' is no option=value"),
        ("topk:warmup=many", "warmup must be a whole number, not 'many'"),
        ("topk:density=2", "density is a part of the gradients, more than 0 and up to 1, not 2"),
        ("topk:warmup=-1", "warmup is a number of iterations, 0 or more"),
        ("onebit:chunk=0", "chunk is a number of gradients, 1 or more, not 0"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as problem:
        make_compression(text, ALONE)
    assert message in str(problem.value)


@needs_mpi
@pytest.mark.parametrize("ranks", [3, 4])
def test_ranks(ranks: int) -> None:
    """See compression_ranks.py."""
    run_ranks(ranks, "compression_ranks.py")
