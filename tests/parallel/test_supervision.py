"""What user code, libraries, the environment and other launchers do to a job, and what the job makes of it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallel.conftest import MPIEXEC, ROOT, Job, needs_mpi, until

Start = Callable[..., Job]
LAYER = """
layer { name: "user" type: "Python" bottom: "ip" python_param { module: "user" layer: "User" } }
"""
HEAD = """
import os, subprocess, sys
import caffe

class User(caffe.Layer):
    calls = 0

    def setup(self, bottom, top):
        self.rank = os.environ.get("PMI_RANK")

    def reshape(self, bottom, top):
        pass

    def backward(self, top, propagate_down, bottom):
        pass

    def forward(self, bottom, top):
        self.calls += 1
"""


@pytest.fixture
def user(folder: Path) -> Callable[[str], None]:
    """user(code) adds a layer to the net that runs the code in its forward passes."""

    def write(code: str) -> None:
        net = folder / "net.prototxt"
        net.write_text(net.read_text() + LAYER)
        (folder / "user.py").write_text(HEAD + "".join(f"        {line}\n" for line in code.splitlines()))

    return write


# --- user code --------------------------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("end", ["os._exit(15)", "sys.exit(143)"])
def test_an_exit_code_of_user_code_is_no_signal(start: Start, user: Callable[[str], None], end: str) -> None:
    """It is a fault of that rank, after which the job starts again."""
    user(f"""
if self.calls == 3 and self.rank == "1" and not os.path.exists("ended"):
    open("ended", "w").close()
    {end}
""")
    job = start("--workers", "2", "--restarts", "1", "--timeout", "4")
    assert job.wait() == 0, job.text[-3000:]
    code = re.search(r"\d+", end)
    assert code and "Restart 1 of 1" in job.text
    (told,) = re.findall(r"\] (rank .*)", job.text)
    assert told.startswith("rank 1 ") and f"code {code[0]}" in told, told


@needs_mpi
def test_user_code_draws_other_numbers_in_each_rank(start: Start, folder: Path, user: Callable[[str], None]) -> None:
    user("import numpy; open(f'drawn{self.rank}', 'a').write(str(numpy.random.rand()))")
    job = start("--workers", "2")
    assert job.wait() == 0, job.text[-3000:]
    assert (folder / "drawn0").read_text() != (folder / "drawn1").read_text()


@needs_mpi
def test_a_relative_python_path_is_that_of_the_launcher(
    start: Start, folder: Path, user: Callable[[str], None]
) -> None:
    """Although agents start in other folders."""
    user("pass")
    (folder / "python").mkdir()
    (folder / "user.py").rename(folder / "python" / "user.py")
    job = start("--workers", "2", PYTHONPATH=f"{ROOT}:python")
    assert job.wait() == 0, job.text[-3000:]


@needs_mpi
@pytest.mark.parametrize(
    ("flags", "under"),
    [(["--workers", "2"], []), ([], [MPIEXEC, "-n", "2"])],
)
def test_a_command_in_a_subprocess_of_a_rank_is_no_rank(
    start: Start, folder: Path, user: Callable[[str], None], flags: list[str], under: list[object]
) -> None:
    for rank in ("0", "1"):
        solver = (folder / "solver.prototxt").read_text().replace('"net.prototxt"', '"plain.prototxt"')
        (folder / f"child{rank}.prototxt").write_text(re.sub('_prefix: "[a-z]+"', f'_prefix: "child{rank}"', solver))
    (folder / "plain.prototxt").write_text((folder / "net.prototxt").read_text())
    user("""
if self.calls == 2 and "TEST" not in os.environ.get("CHILD", ""):
    words = [sys.executable, "-m", "fcaffe", "train", "--solver", f"child{self.rank}.prototxt"]
    words += ["--workers", "2"] if self.rank == "1" else []
    done = subprocess.run(words, capture_output=True, text=True)
    open(f"said{self.rank}", "w").write(f"{done.returncode} {done.stderr}")
""")
    job = start(*flags, under=under)
    assert job.wait() == 0, job.text[-3000:]
    for rank in ("0", "1"):
        said = (folder / f"said{rank}").read_text()
        assert said.startswith("0 ") and "Optimization Done." in said, said[-2000:]
        assert ("2 workers on 1 host" in said) is (rank == "1")


# --- other launchers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["--workers 4", "--hosts a:2,b:2"])
def test_another_mpi_than_mpich_is_refused_with_both_remedies(start: Start, folder: Path, flags: str) -> None:
    (folder / "mpi4py").mkdir()
    (folder / "mpi4py" / "__init__.py").write_text(
        "from types import SimpleNamespace\nrc = SimpleNamespace()\n"
        "MPI = SimpleNamespace(Get_library_version=lambda: 'Open MPI v5.0.3, package: Debian')\n"
    )
    job = start(*flags.split())
    assert job.wait() == 134
    assert len(job.fatal) == 1 and "mpi4py uses Open MPI v5.0.3" in job.fatal[0], job.text
    assert "pip install mpich" in job.fatal[0] and "mpirun -n 4 fcaffe train" in job.fatal[0]


# --- the environment --------------------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("transports", ["tcp", "^shm"])
def test_any_choice_of_ucx_transports_starts(start: Start, transports: str) -> None:
    job = start("--workers", "2", UCX_TLS=transports)
    assert job.wait() == 0, job.text[-3000:]


@needs_mpi
def test_a_rank_that_is_told_to_end_before_it_listens_ends_the_job(start: Start) -> None:
    """Its agent is told nothing by that, and what the agent does about signals is not inherited."""
    job = start("--workers", "2", "--restarts", "2", solver="long.prototxt")
    until(lambda: "rank 1" in job.named(), pause=0)
    os.kill(job.rank(1), signal.SIGTERM)
    assert job.wait() == 143, job.text[-2000:]
    assert "Restart 1" not in job.text and not job.fatal
