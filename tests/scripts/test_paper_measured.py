"""What scripts/paper measures: the arithmetic of its tables, and the smallest run of each script that needs no root."""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.parallel.conftest import MPIEXEC, needs_mpi

PAPER = Path(__file__).parents[2] / "scripts" / "paper"


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    names = ("emulated_device", "figure1", "figure4", "large_batch", "measured")
    sys.path.insert(0, str(PAPER))
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(PAPER))


def ran(*command: object) -> list[dict]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_figure_4_holds_sums_against_formulas(scripts: dict[str, ModuleType]) -> None:
    figure4, bandwidth = scripts["figure4"], 25e6 * 1448 / 1514
    results = [{"reduction": "server", "ranks": 2, "bytes": 4, "seconds": 2e-4}]
    results += [{"reduction": name, "ranks": 4, "bytes": 30_000_000, "seconds": 4.0} for name in ("ring", "server")]
    ring, server = figure4.with_formulas(results, "200mbit")
    assert ring["formula"] == ring["book"] == pytest.approx(1e3 * (6 * 1e-4 + 1.5 * 30e6 / bandwidth))
    assert server["formula"] == pytest.approx(1e3 * 6 * (1e-4 + 30e6 / bandwidth))  # rank 0 serves itself
    assert server["book"] == pytest.approx(server["formula"] * 8 / 6)
    assert f"| ring | 4 | 4000 | {ring['formula']:.0f} | {ring['book']:.0f} | 2.12 |" in figure4.table([ring, server])


@needs_mpi
def test_figure_4_times_sums_that_are_right() -> None:
    script = [sys.executable, PAPER / "figure4.py", "--ranks", "--reduce", "ring,halving", "--bytes", "4000"]
    found = ran(MPIEXEC, "-n", "2", *script)
    assert [(one["reduction"], one["ranks"], one["bytes"]) for one in found] == [
        ("ring", 2, 4000),
        ("halving", 2, 4000),
    ]
    assert all(0 < one["seconds"] < 1 for one in found)


def test_figure_1_holds_iterations_against_plans(scripts: dict[str, ModuleType]) -> None:
    figure1 = scripts["figure1"]
    alone = figure1.computing(4096, 1).seconds
    split = dict.fromkeys(("forward", "backward", "exposed reduce", "wait for others", "update"), 0.0)
    one = {"reduce": "auto", "hosts": 1, "ms": {**split, "forward": 1e3 * alone, "update": 5.0, "all": 1e3 * alone + 5}}
    two = {"reduce": "auto", "hosts": 2, "ms": {**split, "forward": 500 * alone, "update": 5.0, "all": 600 * alone}}
    found = {"rate": "100mbit", "batch": 4096, "cores": 2, "short": {"seconds": 2e-4}, "results": [one, two]}
    points = figure1.points(found)
    assert [(point["hosts"], point["reduce"]) for point in points] == [(1, name) for name in figure1.REDUCTIONS] + [
        (2, "auto")
    ]
    assert points[0]["predicted"] == pytest.approx(points[0]["measured"])
    assert points[-1]["predicted"]["compute"] == pytest.approx(500 * alone)
    table = figure1.table(points)
    assert "| 2 | auto |" in table and "0.84 **missed**" in table and table.endswith("3 of 4 iterations within 15%")


class Clock:
    """Stands for the module time; its sleeps last too long, some by more than a piece of work takes."""

    now, longest = 0.0, 0.75  # seconds

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.longest * (int(self.now * 7) % 4 == 1)


def test_figure_1_sleeps_for_as_long_as_the_device_computes(scripts: dict[str, ModuleType]) -> None:
    """Of its run, on a busy machine, a few iterations may be made shorter by a sleep before them that was too long."""
    (found,) = ran(sys.executable, PAPER / "figure1.py", "--ranks", "--batch", "8", "--reduce", "auto")
    assert found["hosts"] == 1 and found["ms"]["all"] > 0
    clock = Clock()
    device = scripts["emulated_device"].Device()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts["emulated_device"], "time", clock)
        for seconds in [0.5] * 100:
            device.work(seconds)
    assert clock.now == pytest.approx(50 + device.late) and 0 <= device.late <= clock.longest


def test_large_batches_are_trained_and_told(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    large_batch = scripts["large_batch"]
    for kind, header, values in (
        ("images-idx3", b"\0\0\x08\3\0\0\1\xf4\0\0\0\x1c\0\0\0\x1c", np.arange(500 * 784) % 251),
        ("labels-idx1", b"\0\0\x08\1\0\0\1\xf4", np.arange(500) % 10),
    ):
        packed = gzip.compress(header + values.astype(np.uint8).tobytes())
        (tmp_path / f"t10k-{kind}-ubyte.gz").write_bytes(packed)
    images = large_batch.databases(tmp_path, tmp_path)
    assert images == {"train": 400, "test": 100}
    accuracy = large_batch.train(tmp_path, images, 2, "LARS, warm-up", 0.5, 1)
    assert "max_iter: 2\n" in (tmp_path / "solver.prototxt").read_text()
    assert accuracy is not None and 0 <= accuracy <= 1
    points = [{"batch": 128, "rule": rule, "accuracy": 0.5} for rule in large_batch.RULES]
    points[1]["accuracy"] = None
    assert large_batch.table(points).splitlines()[2:] == ["| 128 | 50.0 % | diverged | 50.0 % | 50.0 % |"]


def test_cells_are_held_against_predictions(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    measured = scripts["measured"]
    cell = {"net": "lenet", "batch": 64, "workers": 1, "reduce": "auto", "measured": {"ms": 10.0}}
    good, bad = ({**cell, "predicted_ms": ms, "ratio": ms / 10, "disturbed": False} for ms in (11.0, 8.4))
    lines = measured.table([good, bad]).splitlines()
    assert lines[2:4] == [
        "| lenet | 64 | 1 | 11.0 | 10.0 | 1.10 |  |",
        "| lenet | 64 | 1 | 8.4 | 10.0 | 0.84 | missed |",
    ]
    assert lines[-1].startswith("1 of 2 cells within 15%")
    (tmp_path / "titan.json").write_text('{"like": "titan", "speeds": {"NiN_CIFAR10": 100}}')
    alone = {**cell, "net": "nin_cifar10", "file": tmp_path / "titan.json", "measured": {"ms": 320.0}}
    assert measured.compared(alone)["ratio"] == pytest.approx(2.0)
