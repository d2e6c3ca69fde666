"""`import caffe`: its names, which are fcaffe's own objects by whichever way a script comes to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fcaffe
from fcaffe.as_caffe import TOP_LEVEL

# What BVLC Caffe's package has, but for what other modules of it hold.
NAMES = """
    AdaDeltaSolver AdaGradSolver AdamSolver Layer NCCL Net NesterovSolver RMSPropSolver SGDSolver TEST TRAIN Timer
    __version__ get_solver has_nccl init_log layer_type_list log set_device set_mode_cpu set_mode_gpu set_multiprocess
    set_random_seed set_solver_count set_solver_rank solver_count solver_rank
"""


def in_fresh_process(code: str, *folders: Path | str) -> Any:
    """What the code prints as JSON, in a Python that finds `caffe` as an installation does: behind all else."""
    path = os.pathsep.join(map(str, [*folders, Path(fcaffe.__file__).parents[1], TOP_LEVEL]))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SCRIPT = f"""
import fcaffe
assert fcaffe._caffe.BlobVec is fcaffe.BlobVec  # which scripts that merge BatchNorms look up
assert [fcaffe.layers.__name__, fcaffe.log.__name__] == ["fcaffe.layers", "fcaffe.log"]
import caffe
assert caffe.pycaffe.Net is caffe._caffe.Net is caffe.Net is fcaffe.Net
assert not [name for name in {NAMES.split()!r} if not hasattr(caffe, name)]
assert all(getattr(caffe, name) is getattr(fcaffe, name) for name in fcaffe.__all__ if name != "layers")
assert (caffe.__version__, caffe.proto.caffe_pb2.TEST) == ("1.0.0", 1)
import caffe._caffe, caffe.pycaffe
from caffe.proto import caffe_pb2 as one
import caffe.proto.caffe_pb2 as two
from fcaffe.proto import caffe_pb2 as three
from fcaffe.pycaffe import interface
assert one is two is three and caffe.pycaffe is caffe._caffe is interface
try:
    caffe.nothing
except AttributeError as error:
    assert str(error) == "module 'caffe' has no attribute 'nothing'"
from caffe import *
names = "Classifier Detector NetSpec io layers net_spec params proto pycaffe to_proto".split()
assert not [name for name in [*names, *{NAMES.split()!r}] if not name.startswith("_") and name not in globals()]
print("1")
"""


def test_it_has_caffes_names_and_modules_which_are_fcaffes_own() -> None:
    assert in_fresh_process(SCRIPT) == 1


def test_another_caffe_that_is_installed_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "caffe").mkdir()
    (tmp_path / "caffe" / "__init__.py").write_text("rival = 1\n")
    assert in_fresh_process("import caffe; print(caffe.rival)", tmp_path) == 1


def test_a_module_that_fcaffe_lacks_comes_from_another_caffe(tmp_path: Path) -> None:
    """Such as the functions with which the scripts of SSD's fork build their nets."""
    package = tmp_path / "caffe"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not compiled')\n")
    (package / "io.py").write_text("raise ImportError('not this one')\n")
    (package / "model_libs.py").write_text(
        "import caffe.io\nfrom caffe import layers as L\nname = L.ReLU().fn.type_name\n"
    )
    script = tmp_path / "script.py"
    script.write_text("from caffe.model_libs import *\nprint(name, caffe.TEST)\n")
    done = subprocess.run(
        [sys.executable, "-m", "fcaffe", "run", str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(fcaffe.__file__).parents[1])])},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "ReLU 1\n", done.stderr


def test_a_folder_of_the_name_is_no_package(tmp_path: Path) -> None:
    """Such as a checkout of Caffe, seen from the folder that it lies in."""
    (tmp_path / "caffe" / "python").mkdir(parents=True)
    assert in_fresh_process("import caffe; print(caffe.TEST)", tmp_path) == 1
