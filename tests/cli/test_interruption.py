"""Real processes, killed and signalled in the middle of training."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fcaffe.data import array_to_datum
from fcaffe.data.backends import write_database
from fcaffe.model_files import read_model
from tests.conftest import GOLDEN

pytestmark = pytest.mark.jobs

NET = f"""
layer {{
  name: "data" type: "Data" top: "data" top: "label"
  transform_param {{ crop_size: 24 mirror: true scale: 0.00390625 }}
  data_param {{ source: "{GOLDEN}/interop/gray_lmdb" backend: LMDB batch_size: 10 }}
}}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param {{ num_output: 8 kernel_size: 5 stride: 2 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "drop" type: "Dropout" bottom: "conv" top: "conv" }}
layer {{ name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
        inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.01 lr_policy: "inv" gamma: 0.001 power: 0.75 momentum: 0.9 weight_decay: 0.001
display: 10 max_iter: 800 snapshot: 200 snapshot_prefix: "{prefix}" random_seed: 3 solver_mode: CPU
"""


RUNNING: list[subprocess.Popen[str]] = []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    for prefix in ("straight", "killed"):
        (tmp_path / f"{prefix}.prototxt").write_text(SOLVER.format(prefix=prefix))
    return tmp_path


def start(folder: Path, prefix: str, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fcaffe", "train", "--solver", f"{prefix}.prototxt", *flags]
    RUNNING.append(subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True))
    return RUNNING[-1]


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """A failing test ends its processes, too."""
    yield
    while RUNNING:
        process = RUNNING.pop()
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"the log ended without {text!r}")


def finish(process: subprocess.Popen[str]) -> str:
    log = process.communicate(timeout=300)[1]
    return log


def weights(path: Path) -> list[np.ndarray]:
    return [blob.data for layer in read_model(path).layers for blob in layer.blobs]


def test_killed_and_resumed_is_as_if_nothing_had_happened(folder: Path) -> None:
    straight = start(folder, "straight")
    killed = start(folder, "killed")
    wait_for(killed, "Iteration 400 ")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    resumed = start(folder, "killed", "--snapshot", "auto")
    log = finish(resumed)
    assert resumed.returncode == 0, log
    assert "Resuming from killed_iter_" in log
    finish(straight)
    ours, theirs = (weights(folder / f"{prefix}_iter_800.caffemodel") for prefix in ("killed", "straight"))
    assert len(ours) == len(theirs) == 4
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_sigterm_snapshots_and_stops(folder: Path) -> None:
    """As other signals do, whose effects test_train tries in one process."""
    process = start(folder, "killed")
    wait_for(process, "Iteration 170 ")
    process.send_signal(signal.SIGTERM)
    log = finish(process)
    assert process.returncode == 143 and "Optimization stopped early." in log, log
    iterations = [int(path.stem.rsplit("_", 1)[1]) for path in folder.glob("killed_iter_*.solverstate")]
    assert max(iterations) > 170 and max(iterations) % 200


def test_ctrl_c_while_modules_are_imported_is_the_end_without_a_word(folder: Path) -> None:
    """From the first import of fcaffe on; before that Python starts, which is not ours to change."""
    delays = random.Random(4)
    for program in (
        [sys.executable, "-X", "importtime", "-m", "fcaffe"],
        [sys.executable, "-X", "importtime", "fcaffe"],
    ):
        (folder / "fcaffe").write_text("import sys\nfrom fcaffe.cli import main\nsys.exit(main())\n")
        for _ in range(3):
            command = [*program, "time", "--model", "net.prototxt", "--iterations", "1000000"]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
            process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
            RUNNING.append(process)
            wait_for(process, "fcaffe.interruption")
            wait_for(process, "fcaffe.threads")
            time.sleep(delays.uniform(0, 0.5))
            process.send_signal(signal.SIGINT)
            log = "".join(line for line in finish(process).splitlines(True) if not line.startswith("import time:"))
            assert process.returncode == 130, log
            assert "Traceback" not in log and "Exception" not in log


def test_ctrl_c_while_a_module_ignores_every_exception_of_its_import(folder: Path) -> None:
    (folder / "ignores.py").write_text(
        "import sys, time, caffe\n"
        "try:\n"
        "    print('importing', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "except BaseException:\n"
        "    pass\n"
        "class Layer(caffe.Layer):\n"
        "    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(1)\n"
        "    def forward(self, bottom, top): pass\n"
        "    def backward(self, top, propagate_down, bottom): pass\n"
    )
    layer = 'layer { name: "p" type: "Python" top: "p" python_param { module: "ignores" layer: "Layer" } }'
    (folder / "net.prototxt").write_text(layer)
    command = [sys.executable, "-m", "fcaffe", "time", "--model", "net.prototxt", "--iterations", "1000000"]
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{folder}"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    RUNNING.append(process)
    wait_for(process, "importing")
    process.send_signal(signal.SIGINT)
    log = finish(process)
    assert process.returncode == 130 and "Traceback" not in log, log


@pytest.mark.parametrize("module", ["fcaffe", "fcaffe.cli"])
def test_the_signals_of_a_program_that_imports_fcaffe_are_left_alone(module: str) -> None:
    code = (
        "import faulthandler, signal; before = [signal.getsignal(n) for n in signal.valid_signals()]\n"
        f"import {module}\n"
        "assert before == [signal.getsignal(n) for n in signal.valid_signals()] and not faulthandler.is_enabled()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, timeout=300)


@pytest.mark.parametrize("kind", ["LMDB", "LEVELDB"])
def test_a_database_that_is_cut_while_a_training_reads_it_is_named(kind: str, folder: Path) -> None:
    if kind == "LEVELDB":
        pytest.importorskip("plyvel", reason="the leveldb extra (plyvel) is not installed")
    image = np.random.default_rng(0).integers(0, 256, (1, 128, 128), np.uint8)
    record = array_to_datum(image, 1).SerializeToString()
    write_database(str(folder / "db"), ((b"%08d" % key, record) for key in range(1000)), kind.lower())
    net = NET.replace(f"{GOLDEN}/interop/gray_lmdb", "db").replace("backend: LMDB", f"backend: {kind}")
    (folder / "net.prototxt").write_text(net)
    process = start(folder, "killed")
    wait_for(process, "Iteration 10 ")
    for path in (*folder.glob("db/*.ldb"), *folder.glob("db/data.mdb")):
        os.truncate(path, 5000)
    last = finish(process).splitlines()[-1]
    assert process.returncode == -signal.SIGBUS
    assert last.startswith("F") and f'{"LevelDB" if kind == "LEVELDB" else kind} "db"' in last and "cut short" in last
