"""What an installation of fcaffe puts into a Python: the packages `fcaffe` and `caffe`, and the commands."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILDERS = {"wheel": "build_wheel", "editable": "build_editable"}
SHOW = (
    "import caffe, fcaffe.proto.caffe_pb2; print(caffe.__version__, caffe.Net is fcaffe.Net); print(fcaffe.__file__); "
    "print(caffe.__file__)"
)


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=BUILDERS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """How fcaffe was installed, and the folder of the commands of a fresh environment that has nothing else."""
    pytest.importorskip("hatchling")
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp(request.param)
    builder = BUILDERS[request.param]
    wheel = run(sys.executable, "-c", f"from hatchling.build import *; print({builder}({str(folder)!r}))").split()[-1]
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    pip = [sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", folder / wheel)
    return request.param, folder / "env" / "bin"


def test_both_names_are_there(installed: tuple[str, Path], tmp_path: Path) -> None:
    """Folders of these names, such as checkouts, do not hide them."""
    how, commands = installed
    for name in ("fcaffe", "caffe"):
        (tmp_path / name).mkdir()
    others = sysconfig.get_path("purelib")  # for what fcaffe depends on; no .pth file is read there
    said, *files = run(commands / "python", "-c", SHOW, cwd=tmp_path, PYTHONPATH=others).splitlines()
    assert said == "1.0.0 True"
    place = ROOT if how == "editable" else commands.parent
    assert [Path(file).is_relative_to(place) for file in files] == [True, True]


def test_commands(installed: tuple[str, Path], tmp_path: Path) -> None:
    _, commands = installed
    others = sysconfig.get_path("purelib")
    assert run(commands / "caffe", "--version", cwd=tmp_path, PYTHONPATH=others).startswith("caffe version 1.0.0")
    (tmp_path / "script.py").write_text(f"import sys; print(sys.argv[1:]); {SHOW}")
    said = run(commands / "fcaffe", "run", "script.py", "-v", cwd=tmp_path, PYTHONPATH=others)
    assert said.startswith("['-v']\n1.0.0 True\n")


def test_nothing_of_another_caffe_is_overwritten(installed: tuple[str, Path]) -> None:
    how, commands = installed
    (places,) = (commands.parent / "lib").glob("python*/site-packages")
    there = {path.name for path in places.iterdir()}
    assert there == {"fcaffe.pth", "fcaffe-0.1.0.dist-info", "_fcaffe.pth" if how == "editable" else "fcaffe"}


def test_every_file_is_in_the_wheel(installed: tuple[str, Path]) -> None:
    how, commands = installed
    if how == "wheel":
        (places,) = (commands.parent / "lib").glob("python*/site-packages")
        files = {path.relative_to(ROOT) for path in (ROOT / "fcaffe").rglob("*") if path.is_file()}
        wanted = {path for path in files if "__pycache__" not in path.parts and path.suffix != ".pth"}
        assert wanted <= {path.relative_to(places) for path in places.rglob("*")}
