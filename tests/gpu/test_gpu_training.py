"""Training on the GPU: Caffe's run on MNIST, the CPU's noise, the same bits again, less memory, and the way back."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fcaffe.engines import Engine, NumpyEngine, cpu_engine
from fcaffe.errors import FcaffeError
from fcaffe.rng.counter import TRAINING, Moment
from fcaffe.solvers import Solver
from tests.conftest import GOLDEN
from tests.engine_choice import host
from tests.gpu.training import give_batch, lenet_solver, losses, small_solver, weights
from tests.solvers.test_golden_run import mnist  # noqa: F401
from tests.watching import watch

pytestmark = pytest.mark.gpu
MakeEngine = Callable[..., Engine]


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.usefixtures("mnist")
def test_lenet_follows_caffe(gpu_engine: MakeEngine, capfd: pytest.CaptureFixture[str]) -> None:
    solver = lenet_solver(gpu_engine())
    expected = np.load(GOLDEN / "runs" / "lenet" / "exact.npz")["loss"]
    found: list[float] = []
    watch(solver, gradients_ready=lambda: found.append(float(host(solver.net.blob("loss").data))))
    solver.solve()
    solver.close()
    difference = np.abs(np.array(found) - expected)
    assert (difference / expected)[:25].max() <= 2e-4
    assert (difference / expected)[:50].max() <= 1e-2
    assert difference[60:491:10].mean() <= 0.002
    assert difference[60:491:10].max() <= 0.01
    assert accuracies(capfd)[-1] == pytest.approx(0.9715, abs=3 / 2000)


@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize("math", ["tf32", "bf16", "fp16"])
def test_lenet_learns_in(math: str, gpu_engine: MakeEngine, capfd: pytest.CaptureFixture[str]) -> None:
    solver = lenet_solver(gpu_engine(math))
    solver.solve()
    solver.close()
    assert accuracies(capfd)[-1] == pytest.approx(0.9715, abs=0.01)


def accuracies(capfd: pytest.CaptureFixture[str]) -> list[float]:
    return [float(text) for text in re.findall(r"Test net output #0: accuracy = (\S+)", capfd.readouterr().err)]


@pytest.mark.usefixtures("mnist")
def test_batches_arrive_whole_and_in_order(gpu_engine: MakeEngine) -> None:
    """They travel while the iteration before is computed."""
    seen: list[list[np.ndarray]] = []
    for engine in (gpu_engine(), cpu_engine()):
        solver = lenet_solver(engine, test_initialization=False)
        batches: list[np.ndarray] = []

        def look(solver=solver, batches=batches) -> None:
            batches.extend(host(solver.net.blob(name).data) for name in ("data", "label"))

        watch(solver, gradients_ready=look)
        solver.step(12)
        solver.close()
        seen.append(batches)
    for ours, theirs in zip(*seen, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_losses_are_the_cpus(gpu_engine: MakeEngine) -> None:
    """Dropout, LRN, BatchNorm and all: so the masks are the same, too."""
    solver, reference = small_solver(gpu_engine()), small_solver(NumpyEngine())
    np.testing.assert_array_equal(weights(solver), weights(reference))
    assert relative(losses(solver, 8), losses(reference, 8)) < 1e-4
    assert relative(weights(solver), weights(reference)) < 1e-3


def test_dropout_masks_are_the_cpus(gpu_engine: MakeEngine) -> None:
    dropped = []
    for engine in (gpu_engine(), NumpyEngine()):
        solver = small_solver(engine)
        net, masks = solver.net, []
        for number in range(4):
            net.forward(moment=Moment(TRAINING, number, 3 * number))
            masks.append(host(net.blob("ip1").data) == 0)
        dropped.append(masks)
    assert 0.3 < np.mean(dropped[1]) < 0.7
    np.testing.assert_array_equal(dropped[0], dropped[1])


@pytest.mark.parametrize("math", ["fp32", "tf32", "bf16", "fp16"])
def test_two_runs_have_the_same_bits(math: str, gpu_engine: MakeEngine) -> None:
    first, second = (run(small_solver(gpu_engine(math)), 6) for _ in range(2))
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def run(solver: Solver, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses and weights of so many iterations."""
    return losses(solver, iterations), weights(solver)


@pytest.mark.parametrize(
    ("math", "extra"),
    [
        ("fp32", ""),
        ("bf16", ""),
        ("fp16", ""),
        ("fp16", "iter_size: 2"),  # whose passes have the loss's scale of the whole iteration
        ("bf16", 'type: "Adam" momentum2: 0.99'),
    ],
)
def test_graphs_change_no_bit(math: str, extra: str, gpu_engine: MakeEngine) -> None:
    found = []
    for graphs in (True, False):
        solver = small_solver(gpu_engine(math, graphs=graphs), extra)
        solver.step(6)
        found.append(weights(solver))
    np.testing.assert_array_equal(*found)


def test_a_second_solver_has_graphs_of_its_own(gpu_engine: MakeEngine) -> None:
    """Even where Python gives its net the address of the first one's."""
    engine = gpu_engine()
    expected = None
    for _ in range(3):
        solver = small_solver(engine)
        solver.step(6)
        found = weights(solver)
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)
        del solver


@pytest.mark.parametrize("graphs", [True, False])
def test_other_threads_change_no_bit(graphs: bool, gpu_engine: MakeEngine) -> None:
    """A solver that another thread makes, two more use, and the first one reads."""
    expected = run(small_solver(gpu_engine(graphs=graphs)), 6)
    engine = gpu_engine(graphs=graphs)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        solver = one.submit(small_solver, engine).result()
        found = [pool.submit(losses, solver, 2).result() for pool in (two, one, two)]
    np.testing.assert_array_equal(np.concatenate(found), expected[0])
    np.testing.assert_array_equal(weights(solver), expected[1])


def test_batches_of_another_size(gpu_engine: MakeEngine) -> None:
    """What is recorded for one shape is not used for another."""
    outputs = []
    for engine in (gpu_engine(), NumpyEngine()):
        solver, found = small_solver(engine), []
        for batch in (8, 8, 8, 8, 5, 8, 5, 5, 5, 5):
            give_batch(solver, batch)
            found += list(losses(solver, 1))
        outputs.append(np.array(found))
    assert relative(*outputs) < 1e-4


@pytest.mark.parametrize("math", ["fp32", "bf16"])
def test_recomputing_changes_no_bit(math: str, gpu_engine: MakeEngine) -> None:
    plain, spare = (run(small_solver(gpu_engine(math), **options), 6) for options in ({}, {"recompute": True}))
    for ours, theirs in zip(plain, spare, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_out_of_memory_says_what_would_fit(gpu_engine: MakeEngine) -> None:
    engine = gpu_engine()
    pool = engine.xp.get_default_memory_pool()
    before = pool.get_limit()
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + (48 << 20))  # enough for the images
    try:
        with pytest.raises(FcaffeError, match=r"(?s)memory.*batch"):
            small_solver(engine, batch=4096).step(2)
    finally:
        pool.set_limit(size=before)


def test_snapshots_go_to_the_cpu_and_back(gpu_engine: MakeEngine, tmp_path: Path) -> None:
    prefix = f'snapshot_prefix: "{tmp_path / "model"}"'
    whole = run(small_solver(gpu_engine(), prefix), 9)[1]
    solver = small_solver(gpu_engine(), prefix)
    solver.step(3)
    for engine in (NumpyEngine(), gpu_engine()):
        state, before = solver.snapshot(), weights(solver)
        solver = small_solver(engine, prefix)
        solver.restore(state)
        np.testing.assert_array_equal(weights(solver), before)
        solver.step(3)
    assert solver.iteration == 9
    assert relative(weights(solver), whole) < 1e-3


def test_resumed_run_has_the_same_bits(gpu_engine: MakeEngine, tmp_path: Path) -> None:
    prefix = f'snapshot_prefix: "{tmp_path / "model"}"'
    whole = small_solver(gpu_engine(), prefix)
    whole.step(4)
    state = whole.snapshot()
    expected = run(whole, 5)[1]
    resumed = small_solver(gpu_engine(), prefix)
    resumed.restore(state)
    resumed.step(5)
    np.testing.assert_array_equal(weights(resumed), expected)
