"""What an installation of fcaffe puts into a Python: the packages `fcaffe` and `caffe`, and the commands."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tests.golden_data import GOLDEN

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


def test_lenet_is_trained_without_the_repository(installed: tuple[str, Path], tmp_path: Path) -> None:
    """By the lines of docs/train.md, with MNIST's test set in the place of both sets."""
    how, commands = installed
    if how == "editable":
        pytest.skip("the repository is there")
    page = (ROOT / "docs" / "train.md").read_text().partition("## LeNet")[2].partition("\n## ")[0]
    (script,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in re.findall(r"^    \S.*$", page.replace(script, ""), re.MULTILINE)]
    (tmp_path / "lenet.py").write_text(
        script.replace("max_iter: 500", "max_iter: 50").replace("test_iter: 100", "test_iter: 5")
    )
    for part, kind in itertools.product(("train", "t10k"), ("images-idx3", "labels-idx1")):
        packed = (GOLDEN / "mnist" / f"t10k-{kind}-ubyte.gz").read_bytes()
        (tmp_path / f"{part}-{kind}-ubyte").write_bytes(gzip.decompress(packed))
    others = sysconfig.get_path("purelib")
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    for line in lines:
        done = subprocess.run(
            line.replace("iter_500", "iter_50").replace("iterations 100", "iterations 5").split(),
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "PYTHONPATH": others},
            capture_output=True,
            text=True,
            executable=str(commands / line.split()[0]),
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert [line.split()[0] for line in lines] == ["convert_mnist_data"] * 2 + ["python", "fcaffe", "fcaffe"]
    assert float(re.findall(r"accuracy = ([\d.]+)", done.stderr)[-1]) > 0.6
    assert (tmp_path / "lenet.html").stat().st_size > 10_000


def test_sizes_and_contents(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    code = f"from hatchling.build import *; print(build_wheel({str(tmp_path)!r}), build_sdist({str(tmp_path)!r}))"
    wheel, source = (tmp_path / name for name in run(sys.executable, "-c", code).split()[-2:])
    assert wheel.stat().st_size < 2 << 20
    with tarfile.open(source) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {
        "models/lenet/train_val.prototxt",
        "tests/test_packaging.py",
        "docs/train.md",
        "scripts/flag_table",
    } <= names
    assert not [name for name in names if name.startswith((".venv", ".git/"))]


def test_the_table_of_flags_is_that_of_the_command_line(tmp_path: Path) -> None:
    run(sys.executable, ROOT / "scripts" / "flag_table", tmp_path / "train.md")
    assert (tmp_path / "train.md").read_text() == (ROOT / "docs" / "train.md").read_text(), "run scripts/flag_table"
