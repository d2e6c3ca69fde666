"""`fcaffe bench reduce`, started alone and by mpiexec."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import pytest

from tests.parallel.conftest import FCAFFE, MPIEXEC, ROOT, needs_mpi

pytestmark = needs_mpi


def bench(*flags: str, by: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*by, *FCAFFE, "bench", "reduce", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_alone() -> None:
    done = bench("--reduce", "tree,mpi,shared", "--bytes", "40,2000000", "--workers", "2,3", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    keys = ["reduction", "ranks", "hosts", "bytes", "seconds", "busbw", "messages", "bytes_sent"]
    assert all(list(result) == keys for result in results)
    measured = [(result["ranks"], result["bytes"], result["reduction"]) for result in results]
    assert measured == [
        (ranks, size, name) for ranks in (2, 3) for size in (40, 2000000) for name in ("tree", "mpi", "shared")
    ]
    for result in results:
        assert result["hosts"] == 1 and result["seconds"] > 0
        ranks = result["ranks"]
        assert result["busbw"] == pytest.approx(
            result["bytes"] / result["seconds"] * 2 * (ranks - 1) / ranks / 1e9, rel=1e-9
        )
        traffic = result["messages"], result["bytes_sent"]
        assert result["reduction"] != "mpi" or traffic == (None, None)
        assert result["reduction"] != "shared" or traffic == (0, 0)
    assert [result["messages"] for result in results if result["reduction"] == "tree"] == [2, 8, 4, 16]


def test_by_mpiexec() -> None:
    done = bench("--bytes=400000", by=[str(MPIEXEC), "-n", "3"])
    assert done.returncode == 0, done.stderr
    _, columns, *rows = done.stdout.splitlines()
    assert " ".join(columns.split()) == "reduction ranks hosts bytes ms busbw GB/s messages bytes sent"
    traffic = {row.split()[0]: row.split()[6:] for row in rows if row}
    assert traffic == {
        "auto": ["0", "0"],
        "doubling": ["3", "800,000"],
        "halving": ["4", "800,000"],
        "mpi": [],
        "ring": ["4", "533,336"],
        "server": ["4", "800,000"],
        "shared": ["0", "0"],
        "tree": ["4", "800,000"],
    }
    seconds = {row.split()[0]: row.split()[4] for row in rows if row}
    assert seconds["auto"] == seconds["shared"], "the one that it calls"
    assert "auto picks shared: all 3 ranks are on one host" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bytes", "4001"], "multiples of 4"),
        (["--bytes", "4k"], "--bytes takes positive numbers with commas between them, not '4k'"),
        (
            ["--workers", "1", "--reduce", "rign"],
            "no reduction 'rign' (did you mean ring?); known are auto, doubling, halving",
        ),
    ],
)
def test_mistakes(flags: list[str], message: str) -> None:
    done = bench(*flags)
    assert done.returncode == 134
    assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
