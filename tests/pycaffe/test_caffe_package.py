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
from fcaffe.pycaffe import interface

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


MODULES = ("classifier", "coord_map", "detector", "draw", "io", "net_spec")


def test_further_modules_are_loaded_when_they_are_asked_for() -> None:
    """Stand-ins for all of them tell when they are."""
    code = (
        "import importlib.abc, importlib.machinery, json, sys\n"
        f"modules = {MODULES!r}\n"
        "class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        mine = name.rpartition('.')[0] == 'fcaffe.pycaffe' and name.rpartition('.')[2] in modules\n"
        "        return importlib.machinery.ModuleSpec(name, self) if mine else None\n"
        "    def exec_module(self, module):\n"
        "        vars(module).update({n: n + '!' for n in ('NetSpec', 'layers', 'params', 'to_proto', 'Classifier')})\n"
        "sys.meta_path.insert(0, StandIns())\n"
        "import caffe, fcaffe\n"
        "loaded = [name for name in modules if f'fcaffe.pycaffe.{name}' in sys.modules]\n"
        "from caffe import layers as L, params as P, NetSpec\nfrom caffe.io import to_proto\n"
        "import caffe.draw\n"
        "same = [getattr(caffe, name) is getattr(fcaffe, name) for name in modules]\n"
        "print(json.dumps([loaded, L, P, NetSpec, caffe.Classifier, all(same), sys.modules['caffe.io'].__name__,"
        "fcaffe.layers.__name__, fcaffe.params]))"
    )
    assert in_fresh_process(code) == [
        *([], "layers!", "params!", "NetSpec!", "Classifier!", True),
        *("fcaffe.pycaffe.io", "fcaffe.layers", "params!"),
    ]


def test_each_late_name_has_a_module_in_the_package() -> None:
    files = {path.stem for path in Path(TOP_LEVEL, "caffe").glob("*.py")}
    assert files == {"__init__", "_caffe", "pycaffe", *MODULES}
    assert {module or name for name, module in interface.LATER.items()} == set(MODULES)


def test_a_name_that_caffe_does_not_have() -> None:
    code = "import caffe, json\ntry: caffe.nothing\nexcept AttributeError as error: print(json.dumps(str(error)))"
    assert in_fresh_process(code) == "module 'caffe' has no attribute 'nothing'"


def test_another_caffe_that_is_installed_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "caffe").mkdir()
    (tmp_path / "caffe" / "__init__.py").write_text("rival = 1\n")
    assert in_fresh_process("import caffe; print(caffe.rival)", tmp_path) == 1


def test_a_folder_of_the_name_is_no_package(tmp_path: Path) -> None:
    """Such as a checkout of Caffe, seen from the folder that it lies in."""
    (tmp_path / "caffe" / "python").mkdir(parents=True)
    assert in_fresh_process("import caffe; print(caffe.TEST)", tmp_path) == 1


@pytest.mark.parametrize("name", ["layers", "log"])
def test_in_fcaffe_two_names_are_its_own_packages(name: str) -> None:
    assert in_fresh_process(f"import fcaffe, json; print(json.dumps(fcaffe.{name}.__name__))") == f"fcaffe.{name}"
