"""An elastic job goes on with the hosts that it has, from its newest snapshot, to the weights of an undisturbed run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe.jobs.launch import FUTILE, Pool
from fcaffe.jobs.member import READY
from fcaffe.jobs.pmi import process_mapping
from tests.parallel.conftest import Job, needs_mpi, until

pytestmark = pytest.mark.jobs

Start = Callable[..., Job]
SLOW = 'layer { name: "slow" type: "Python" bottom: "ip" python_param { module: "slow" layer: "Slow" } }'
LAYER = """
import time
import caffe

class Slow(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        time.sleep(0.002)

    def backward(self, top, propagate_down, bottom):
        pass
"""


@needs_mpi
def test_a_host_leaves_and_comes_back(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses of the loopback are hosts of their own. The hostfile says which of them there are."""
    solver = (folder / "long.prototxt").read_text()
    for field, value in {"max_iter": 1200, "snapshot": 0, "stepsize": 5000, "test_interval": 5000}.items():
        solver = re.sub(rf"\b{field}: \d+", f"{field}: {value}", solver)
    net = (folder / "net.prototxt").read_text()
    (folder / "net.prototxt").write_text(net + SLOW)
    (folder / "slow.py").write_text(LAYER)
    for name in ("quiet", "troubled"):
        (folder / f"{name}.prototxt").write_text(re.sub('_prefix: "[a-z]+"', f'_prefix: "{name}"', solver))
    flags = ["--reproducible", "2"]
    assert start(*flags, solver="quiet.prototxt", OMP_NUM_THREADS="1").wait() == 0
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.2\n127.0.0.3\n")
    flags += ["--hostfile", str(hosts), "--elastic", "1:2", "--rejoin", "1", "--snapshot-every", "0.2"]
    job = start(*flags, solver="troubled.prototxt", OMP_NUM_THREADS="1")
    until(lambda: list(folder.glob("troubled_temporary_iter_*.solverstate")) or job.process.poll() is not None)
    hosts.write_text("127.0.0.2\n")
    os.kill(job.rank(1), signal.SIGKILL)
    job.wait_for("Generation 1: 1 worker on 127.0.0.2, from troubled_temporary_iter_")
    until(lambda: job.text.count("Starting Optimization") == 2)
    hosts.write_text("127.0.0.2\n127.0.0.3\n")
    assert job.wait() == 0, job.text[-3000:]
    assert "127.0.0.3 can take part: this generation ends after troubled_temporary_iter_" in job.text
    assert "Generation 2: 2 workers on 127.0.0.2,127.0.0.3, from troubled_temporary_iter_" in job.text
    assert len(job.fatal) == 1 and job.fatal[0].startswith("rank 1 ")
    weights = [(folder / f"{name}_iter_1200.caffemodel").read_bytes() for name in ("quiet", "troubled")]
    assert weights[0] == weights[1]
    assert not list(folder.glob("*temporary*")) and not job.processes()


@needs_mpi
def test_too_few_hosts_are_named(start: Start, folder: Path) -> None:
    job = start("--hosts", "127.0.0.2,host.invalid", "--elastic", "2:2", "--rejoin", "4")
    assert job.wait() == 134
    assert len(job.fatal) == 1 and job.fatal[0] == (
        "--elastic needs 2 workers, and of its hosts these can be reached: 127.0.0.2"
    )


@needs_mpi
def test_a_job_that_gets_nowhere_ends(start: Start, folder: Path) -> None:
    (folder / "net.prototxt").write_text((folder / "net.prototxt").read_text() + SLOW)
    (folder / "slow.py").write_text(LAYER.replace("time.sleep(0.002)", "import os; os.kill(os.getpid(), 9)"))
    job = start("--hosts", "127.0.0.2,127.0.0.3", "--elastic", "2:2", "--rejoin", "1")
    assert job.wait() == 134
    assert [line.split()[0] for line in job.fatal[:-1]] == ["rank"] * FUTILE
    assert job.fatal[-1].startswith(
        "5 generations in sequence ended without a new snapshot, so the job ends; there is no "
    )


def test_ranks_of_hosts_in_mpichs_words() -> None:
    assert process_mapping([3]) == "(vector,(0,1,3))"
    assert process_mapping([2, 2, 1, 2]) == "(vector,(0,2,2),(2,1,1),(3,1,2))"


def test_the_largest_number_of_workers_that_fits_is_chosen() -> None:
    """Of hosts that are there, in the order of the list, and only what the training can have."""
    from types import SimpleNamespace

    hosts = [("a", 2), ("b", 2), ("c", 2), ("d", 2)]
    elastic = SimpleNamespace(least=2, most=8, hosts=lambda: hosts, fits=lambda workers: workers in (2, 4, 8))
    pool = Pool(SimpleNamespace(plan=SimpleNamespace(hosts=(), workers=8, elastic=elastic)))  # type: ignore[arg-type]
    there = SimpleNamespace(state=READY, is_lost=False)
    for present, expected in (("abcd", 8), ("abd", 4), ("bcd", 4), ("d", 2), ("", 0)):
        pool.waiting = {host: there for host in present}  # type: ignore[misc]
        chosen = pool.largest()
        assert sum(count for _, count in chosen) == expected
        assert {host for host, _ in chosen} <= set(present)


def test_a_hostfile_that_is_being_saved_ends_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Empty, missing or wrong for a moment: the last good list stays, and one line says so."""
    from types import SimpleNamespace

    from fcaffe.cli.workers import LaunchFlags

    file = tmp_path / "hosts"
    file.write_text("a:1\nb:1\n")
    plan = LaunchFlags(hostfile=str(file), elastic="1:2").plan()
    assert plan is not None and plan.elastic is not None
    pool = Pool(SimpleNamespace(plan=plan))  # type: ignore[arg-type]
    for text in ("", "a:", None):
        file.unlink() if text is None else file.write_text(text)
        for _ in range(3):
            pool.read_hosts()
            assert [host for host, _ in pool.hosts] == ["a", "b"]
        assert capfd.readouterr().err.count("the job goes on with the hosts that it knows") == 1
    file.write_text("c:1\n")
    pool.read_hosts()
    assert list(pool.hosts) == [("c", 1)]
