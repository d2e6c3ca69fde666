"""`import caffe`: its names, which are fcaffe's own objects by whichever way a script comes to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def test_it_has_caffes_names() -> None:
    code = (
        f"import caffe, fcaffe, json; names = {NAMES.split()!r}\n"
        "print(json.dumps([[n for n in names if not hasattr(caffe, n)], caffe.__version__, caffe.proto.caffe_pb2.TEST,"
        "[n for n in fcaffe.__all__ if n != 'layers' and getattr(caffe, n) is not getattr(fcaffe, n)]]))"
    )
    assert in_fresh_process(code) == [[], "1.0.0", 1, []]


def test_its_modules_are_fcaffes_own() -> None:
    code = (
        "import caffe._caffe, caffe.pycaffe, json\n"
        "from caffe.proto import caffe_pb2 as one\nimport caffe.proto.caffe_pb2 as two\n"
        "from fcaffe.proto import caffe_pb2 as three\nfrom fcaffe.pycaffe import interface\n"
        "caffe._caffe.Net.added = 1\n"
        "print(json.dumps([one is two is three, caffe.pycaffe is caffe._caffe is interface, caffe.Net.added]))"
    )
    assert in_fresh_process(code) == [True, True, 1]


def test_caffes_own_modules_are_there_without_an_import_of_theirs() -> None:
    """Scripts that merge BatchNorms compare with caffe._caffe.BlobVec."""
    for package in ("import caffe", "import fcaffe as caffe"):
        code = f"{package}; print(int(caffe._caffe.BlobVec is caffe.BlobVec and caffe._caffe.Net is caffe.Net))"
        assert in_fresh_process(code) == 1
    assert in_fresh_process("import caffe; print(int(caffe.pycaffe.Net is caffe.Net))") == 1


def test_a_star_imports_what_caffes_package_has() -> None:
    names = [*NAMES.split(), "Classifier", "Detector", "NetSpec", "io", "layers", "net_spec", "params", "to_proto"]
    names = [name for name in (*names, "proto", "pycaffe") if not name.startswith("_")]
    code = f"from caffe import *\nimport json; print(json.dumps([n for n in {names!r} if n not in globals()]))"
    assert in_fresh_process(code) == []


def test_a_name_that_caffe_does_not_have() -> None:
    code = "import caffe, json\ntry: caffe.nothing\nexcept AttributeError as error: print(json.dumps(str(error)))"
    assert in_fresh_process(code) == "module 'caffe' has no attribute 'nothing'"


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


@pytest.mark.parametrize("name", ["layers", "log"])
def test_in_fcaffe_two_names_are_its_own_packages(name: str) -> None:
    assert in_fresh_process(f"import fcaffe, json; print(json.dumps(fcaffe.{name}.__name__))") == f"fcaffe.{name}"
