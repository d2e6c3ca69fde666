"""A command loads what it needs, and no more: modules are counted here, since times depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fcaffe import cli
from fcaffe.cli.commands import CAFFE_COMMANDS, COMMANDS

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "google", "lmdb", "mpi4py", "h5py", "cv2", "cupy", "concurrent", "multiprocessing", "asyncio"}
OF_FCAFFE = {
    "cgroups",
    "cli",
    "errors",
    "input_files",
    "interruption",
    "log",
    "onednn_library",
    "output_files",
    "jobs",
}
OF_FCAFFE |= {"moved", "shown", "suggestions", "threads"}


def loaded(*words: str) -> tuple[set[str], int]:
    """The modules that `fcaffe` with these words has loaded when it is done, and its exit code."""
    code = (
        "import json, sys; before = set(sys.modules); from fcaffe.cli import main; code = main();"
        "print('\\n' + json.dumps([sorted(set(sys.modules) - before), code]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT, check=True)
    names, status = json.loads(done.stdout.splitlines()[-1])
    return set(names), status


@pytest.mark.parametrize("words", ["--version", "--help", "", "-help", "--version --traceback", "nonsense"])
def test_help_and_version_load_no_command(words: str) -> None:
    names, code = loaded(*words.split())
    assert code == (134 if words == "nonsense" else 0)
    assert not {name.split(".")[0] for name in names} & HEAVY
    assert {name.split(".")[1] for name in names if name.startswith("fcaffe.")} <= OF_FCAFFE
    assert not {name for name in names if name.startswith("fcaffe.cli.")} & {
        f"fcaffe.cli.{n.replace('-', '_')}" for n in COMMANDS
    }


@pytest.mark.parametrize("name", ["train", "summary"])
def test_a_command_loads_none_of_the_others(name: str) -> None:
    names, code = loaded(name, "--help")
    assert code == 0
    assert {other for other in COMMANDS if f"fcaffe.cli.{other.replace('-', '_')}" in names} == {name}
    assert not {each.split(".")[0] for each in names} & {"mpi4py", "h5py", "cv2", "cupy"}


def test_the_table_of_commands() -> None:
    for name, short_help in COMMANDS.items():
        assert len(short_help) < 100
        command = cli._load(name)
        assert isinstance(command, click.Command) and command.name == name and not command.short_help
    assert {*CAFFE_COMMANDS, *cli.RUNS} <= {*COMMANDS}


@pytest.mark.parametrize(
    "words", ["-solver none.prototxt train", "train -solver none.prototxt", "--traceback train -solver none.prototxt"]
)
def test_flags_may_stand_before_the_command(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 134
    assert "none.prototxt does not exist" in capfd.readouterr().err


TWO_LAYERS = """
base_lr: 0.01 lr_policy: "fixed" max_iter: 1 snapshot_after_train: false net_param {
  layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 4 dim: 8 } shape { dim: 4 } } }
  layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
    inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" } }
"""
# Modules of Python and others that take long to load, and that a training like this one has no use for.
UNUSED = {"concurrent", "decimal", "email", "importlib.metadata", "lmdb", "logging", "statistics", "zipfile"}
UNUSED |= {"h5py", "mpi4py", "numba", "cupy", "cv2", "fcaffe.data", "fcaffe.engines.cuda"}
MOST = 180  # modules of fcaffe; it had 284 before layers and parts were loaded on demand


def test_a_training_loads_what_it_uses(tmp_path: Path) -> None:
    solver = tmp_path / "solver.prototxt"
    solver.write_text(TWO_LAYERS)
    names, code = loaded("train", "--solver", str(solver))
    assert code == 0
    assert names & UNUSED == set()
    assert {name for name in names if name.startswith("fcaffe.forks.")} == {"fcaffe.forks.notations"}
    assert {name for name in names if name.startswith("fcaffe.pycaffe.")} == set()
    assert {"fcaffe.layers.inner_product", "fcaffe.layers.input"} <= names
    assert sum(name.startswith("fcaffe") for name in names) <= MOST


def test_a_script_loads_the_layers_of_its_net(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text('layer { name: "in" type: "Input" top: "a" input_param { shape { dim: 1 dim: 2 } } }')
    code = (
        f"import json, sys; sys.path.append('fcaffe/pycaffe/top_level'); import caffe; caffe.Net({str(net)!r}, 1);"
        "print('\\n' + json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    names = set(json.loads(done.stdout.splitlines()[-1]))
    assert not names & (UNUSED - {"fcaffe.engines.cuda", "fcaffe.data", "lmdb"})
    assert {name for name in names if name.startswith("fcaffe.forks.")} == {"fcaffe.forks.notations"}
