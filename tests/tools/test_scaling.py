"""`fcaffe time --scaling`: the splits of the cores, and what they come to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fcaffe.cli.run_net import Split, advice, measure_splits
from fcaffe.errors import FcaffeError
from fcaffe.threads import available_cpus

ROOT = Path(__file__).parents[2]
LENET = str(ROOT / "models" / "lenet" / "train_val.prototxt")


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [
        ({1: 131, 2: 110, 4: 102}, "4 workers of 1 thread: 102 ms; 1 worker of 4 threads: 131 ms; use --workers 4"),
        (
            {1: 100, 2: 110, 4: 120},
            "1 worker of 4 threads: 100 ms; 2 workers of 2 threads: 110 ms; one worker is faster",
        ),
        ({1: 101, 2: 100}, "that is not clearly faster, leave --workers out"),
        ({2: 100, 4: 120}, "2 workers of 2 threads: 100 ms; 4 workers of 1 thread: 120 ms; use --workers 2"),
        ({1: 100}, "1 worker of 4 threads: 100 ms; one worker"),
    ],
)
def test_advice(milliseconds: dict[int, float], told: str) -> None:
    results = [Split(workers, 4 // workers, ms / 1000, 64) for workers, ms in milliseconds.items()]
    assert told in advice([*results, Split(8, 1, problem="cannot split a batch of 4")])


def test_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """A batch of 1 cannot be split: one worker is measured, and the rest say why not."""
    flags = [f"--net={LENET}", "--batch-size=1", "--rounds=1", "--iterations=1"]
    results = measure_splits(flags, 2)
    assert [result.batch for result in results] == [1, 0] and results[0].seconds > 0
    assert "cannot split a batch of 1" in results[1].problem
    heard = capsys.readouterr().err
    assert "Measuring 1 worker of 2 threads\n" in heard and "Measuring 2 workers of 1 thread\n" in heard
    with pytest.raises(FcaffeError, match="does not exist"):
        measure_splits(["--net=nothing.prototxt"], 2)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--scaling", "--gpu", "0"], "leave out --gpu, --engine and --math"),
        *([(["--scaling", "--iterations", "1"], "Training steps of 64 samples")] if available_cpus() > 1 else []),
    ],
)
def test_command(flags: list[str], said: str) -> None:
    command = [sys.executable, "-m", "fcaffe", "time", "--model", LENET, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert said in done.stdout + done.stderr and "Traceback" not in done.stderr
    if not done.returncode:
        *_, last = done.stdout.splitlines()
        assert "1 worker of" in last and "--workers" in last
