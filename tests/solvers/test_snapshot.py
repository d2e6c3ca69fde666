"""Snapshots: Caffe's files read and written field by field, resuming, and what may go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.errors import SnapshotError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import read_binary
from fcaffe.solvers import Solver
from fcaffe.solvers.snapshot.files import paths
from fcaffe.solvers.snapshot.saving import restore_newest
from tests.golden_values import blob_values
from tests.solvers.training import INTEROP, NOISY, assert_near, losses_of, weights_of

LOSSES = json.loads((INTEROP / "train_losses.json").read_text())


def test_training_and_files_are_caffes(interop: Any) -> None:
    solver = interop(snapshot_prefix="ours")
    assert losses_of(solver, 8) == pytest.approx(LOSSES["loss of every iteration"], rel=1e-5)
    ours = read_binary("ours_iter_8.caffemodel", pb.NetParameter)
    theirs = read_binary(INTEROP / "model_iter_8.caffemodel", pb.NetParameter)
    assert [layer.name for layer in ours.layer] == [layer.name for layer in theirs.layer]
    for mine, golden in zip(ours.layer, theirs.layer, strict=True):
        assert [blob.shape for blob in mine.blobs] == [blob.shape for blob in golden.blobs]
        for a, b in zip(mine.blobs, golden.blobs, strict=True):
            assert_near(blob_values(a), blob_values(b))
        for layer in (mine, golden):
            del layer.blobs[:]
        assert mine == golden, "every field other than the values"
    ours = read_binary("ours_iter_8.solverstate", pb.SolverState)
    theirs = read_binary(INTEROP / "model_iter_8.solverstate", pb.SolverState)
    assert (ours.iter, ours.current_step) == (theirs.iter, theirs.current_step)
    assert ours.learned_net == "ours_iter_8.caffemodel"
    for a, b in zip(ours.history, theirs.history, strict=True):
        assert a.shape == b.shape
        assert_near(blob_values(a), blob_values(b))


def test_a_state_of_caffes_resumes_as_caffe_does(interop: Any) -> None:
    solver = interop(snapshot_prefix="ours")
    solver.restore("model_iter_4.solverstate")
    assert (solver.iteration, solver.current_step) == (4, 1)
    assert losses_of(solver, 4) == pytest.approx(LOSSES["resumed at 4"], rel=1e-5)
    golden = np.load(INTEROP / "resumed.npz")
    for name, values in weights_of(solver).items():
        assert_near(values, golden[name])


@pytest.mark.parametrize("noise", ["caffe", "counter"])
@pytest.mark.parametrize("seed", [7, -1])
@pytest.mark.parametrize("hdf5", [False, True])
def test_crops_mirrors_and_noise_go_on_where_they_were(
    noise: str, seed: int, hdf5: bool, interop: Any, solver_from: Callable[..., Solver]
) -> None:
    if hdf5:
        pytest.importorskip("h5py")
    straight = solver_from(NOISY, noise, random_seed=seed, snapshot_format=int(not hdf5))
    losses = losses_of(straight, 12)
    resumed = solver_from(NOISY, noise, random_seed=seed)
    resumed.restore(paths(resumed.param.snapshot_prefix, 5, hdf5)[1])
    assert losses_of(resumed, 7) == losses[5:]
    straight.close()
    resumed.close()


def test_auto_takes_the_newest_that_is_whole(interop: Any, capfd: pytest.CaptureFixture[str]) -> None:
    Path("ours_iter_99.solverstate").symlink_to("one that somebody has removed")
    solver = interop(snapshot_prefix="ours", snapshot=2)
    solver.step(6)
    Path("ours_iter_6.solverstate").write_bytes(Path("ours_iter_6.solverstate").read_bytes()[:200])
    Path("ours_iter_4.caffemodel").write_bytes(Path("ours_iter_4.caffemodel").read_bytes()[:-120])
    fresh = interop(snapshot_prefix="ours")
    assert restore_newest(fresh) == "ours_iter_2.solverstate"
    assert fresh.iteration == 2
    logged = capfd.readouterr().err
    assert "Passing over ours_iter_6.solverstate" in logged
    assert "ours_iter_4.caffemodel" in logged


def test_auto_without_any_starts_fresh_and_says_so(interop: Any, capfd: pytest.CaptureFixture[str]) -> None:
    solver = interop(snapshot_prefix="none")
    before = weights_of(solver)
    assert restore_newest(solver) is None
    assert solver.iteration == 0
    assert all(np.array_equal(values, before[name]) for name, values in weights_of(solver).items())
    assert "starting from iteration 0" in capfd.readouterr().err


def test_a_model_cut_off_between_two_layers_is_noticed(interop: Any) -> None:
    model = read_binary("model_iter_4.caffemodel", pb.NetParameter)
    del model.layer[-4:]
    Path("model_iter_4.caffemodel").write_bytes(model.SerializeToString())
    solver = interop()
    before = weights_of(solver)
    with pytest.raises(SnapshotError, match=r"ip_a.*missing"):
        solver.restore("model_iter_4.solverstate")
    assert all(np.array_equal(values, before[name]) for name, values in weights_of(solver).items())


def test_an_unwritable_prefix_is_refused_before_training(interop: Any) -> None:
    with pytest.raises(SnapshotError, match="Cannot write to snapshot prefix 'missing/folder/x'"):
        interop(snapshot_prefix="missing/folder/x")


def test_a_state_with_an_odd_path_of_its_model_is_refused_by_its_own_name(interop: Any, tmp_path: Path) -> None:
    """Whatever lies at that path: nothing, a folder, a prototxt, an empty file, or no path at all."""
    solver = interop(snapshot_prefix="ours")
    state = pb.SolverState.FromString(Path(solver.snapshot()).read_bytes())
    Path("folder").mkdir()
    Path("net.prototxt").write_text('name: "x"')
    Path("empty").touch()
    draw = np.random.default_rng(1)
    odd = ["".join(map(chr, draw.integers(0, 0x300, draw.integers(1, 300)))) for _ in range(40)]
    for path in ("folder", "net.prototxt", "empty", "a\0b", "\0", "/", ".", "x" * 5000, *odd):
        state.learned_net = path
        Path("odd.solverstate").write_bytes(state.SerializeToString())
        with pytest.raises(SnapshotError, match=r"^odd\.solverstate: .*model"):
            solver.restore("odd.solverstate")
        assert newest_of_auto(solver) is None


def newest_of_auto(solver: Any) -> str | None:
    """What `--snapshot auto` takes if the odd state is the newest."""
    Path("odd.solverstate").replace("auto_iter_9.solverstate")
    solver.param.snapshot_prefix = "auto"
    try:
        return restore_newest(solver)
    finally:
        Path("auto_iter_9.solverstate").unlink()
