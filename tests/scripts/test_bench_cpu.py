"""scripts/bench: how competitors take turns and what the script finds, and a short run without PyTorch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench" / "cpu.py"


@pytest.fixture
def competitors(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("competitors", SCRIPT.with_name("competitors.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "competitors", module)
    spec.loader.exec_module(module)
    return module


class StandIn:
    """A competitor whose steps take the given seconds, and which fails when it has taken `until` steps."""

    is_racing = True

    def __init__(self, who: str, module: Any, events: list[Any], seconds: list[float], until: int = 1000) -> None:
        self.who, self.module, self.events, self.until = who, module, events, until
        self.seconds = iter(seconds)
        self.slices: list[list[float]] = []

    def steps(self, count: int, limit: float) -> list[float]:
        self.events.append((self.who, count))
        self.until -= count
        if self.until < 0:
            self.is_racing = False
            raise self.module.CompetitorError("failed")
        return [next(self.seconds) for _ in range(count)]


def test_slices(competitors: Any) -> None:
    """All warm up before the first slice, whose length the fastest of those steps gives. A pause follows each slice."""
    events: list[Any] = []
    quick = StandIn("quick", competitors, events, [9, 0.25, *([0.25, 0.5, 0.25, 2] * 3)])
    slow = StandIn("slow", competitors, events, [5, 4, *([4, 6] * 3)])
    failing = StandIn("failing", competitors, events, [1] * 5, until=3)
    plan = competitors.Slices(rounds=3, seconds=1, least=2, most=10, warm=2, pause=0.5)
    competitors.take_slices([quick, slow, failing], plan, sleep=events.append)
    rounds = [["quick 2", "slow 2", "failing 2"], ["quick 4", "slow 2", "failing 2"], ["slow 2", "quick 4"]]
    rounds.append(["quick 4", "slow 2"])
    expected = [word.split() for one in rounds for word in one]
    assert events[::2] == [(who, int(count)) for who, count in expected]
    assert events[1::2] == [0.5] * len(expected)
    assert quick.slices == [[0.25, 0.5, 0.25, 2]] * 3 and slow.slices == [[4, 6]] * 3 and not failing.slices


def test_statistics(competitors: Any) -> None:
    """One slow step, or one slice on a busy machine, does not change the result."""
    slices = [[1.0, 1.2, 50.0], [1.1, 1.3, 1.2], [7.0, 8.0, 9.0]]
    assert competitors.median_step(slices) == 1.2
    assert competitors.fastest_step(slices) == 1.0


def test_steps_are_timed_alone_unless_a_device_runs_behind(competitors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(competitors.time, "perf_counter", lambda: now[0])
    durations = iter([1.0, 2.0, 4.0])

    def step(count: int) -> None:
        now[0] += sum(next(durations) for _ in range(count))

    def synchronize() -> None:
        now[0] += 10

    assert competitors.Racer(step).timed(3) == {"seconds": 7.0, "each": [1.0, 2.0, 4.0]}
    durations = iter([1.0, 2.0, 4.0])
    assert competitors.Racer(step, synchronize).timed(3) == {"seconds": 17.0}


def run(name: str, *words: str) -> str:
    script = SCRIPT.with_name(name)
    assert os.access(script, os.X_OK)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


TINY = ["--nets", "lenet", "--batches", "2", "--rounds", "1", "--slice", "0.01"]


def test_lenet(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    words = ["--math", "fp32", "--peers", "pycaffe", "--pause", "0", "--json", str(file)]
    page = run("cpu.py", *TINY, *words)
    results = json.loads(file.read_text())["results"]
    assert [result["step"] for result in results] == ["training", "inference"]
    for result in results:
        own = result["fcaffe"]
        assert 0 < own["fastest_ms"] == own["slices"][0]["min_ms"] <= own["slices"][0]["median_ms"] == own["ms"]
        assert result["pycaffe_ratio"] > 0 and result["gflops"] > 0
    assert page.count("| lenet | 2 |") == 4


def test_rules() -> None:
    """A rule that applies has a row, with the ratio of its gain; the others have none."""
    words = ["--nets", "squeezenet", "--batches", "1", "--steps", "inference", "--slice", "0.01"]
    head, _, *rows = run("rules.py", *words, "--rules", "ConvolutionReLU,PoolingReLU").splitlines()
    assert head == "| net | rule | inference 1 |"
    (row,) = rows
    assert row.startswith("| squeezenet | ConvolutionReLU | ") and float(row.split()[5]) > 0


def test_commits() -> None:
    head, _, *rows = run("commits.py", str(ROOT), str(ROOT), *TINY, "--pause", "0").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[2] for row in cells] == ["training", "inference", "script's forward"]
    for row in cells:
        assert len(row) == head.count("|") - 1
        assert len(row[7].split()) == len(row[8].split()) == 4 and float(row[9]) > 0
    assert float(cells[2][6]) > 0
