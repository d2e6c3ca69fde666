"""A program that uses fcaffe as a library finds its process as it was; the command line sets what it needs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fcaffe import threads
from fcaffe.engines import find_onednn

ROOT = Path(__file__).parents[1]

STATE = """
import json, locale, logging, multiprocessing, os, resource, signal, sys, threading, time, warnings
import numpy as np

def state():
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environment": dict(os.environ),
        "umask": mask,
        "signals": {n: repr(signal.getsignal(n)) for n in signal.valid_signals()},
        "floating point": np.geterr(),
        "print": {name: repr(value) for name, value in np.get_printoptions().items()},
        "warnings": repr(warnings.filters),
        "threads": threading.active_count(),
        "handlers": [repr(handler) for handler in logging.getLogger().handlers],
        "path": sys.path,
        "start method": multiprocessing.get_start_method(allow_none=True),
        "locale": locale.setlocale(locale.LC_ALL),
        "hooks": [repr(sys.excepthook), repr(threading.excepthook), repr(sys.stdout), repr(sys.stderr)],
        "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)],
        "folder": os.getcwd(),
        "seed": repr(np.random.get_state()[1][:3]),
    }
"""
IMPORTS = """
before = state()
import fcaffe
imported = state()
"""
USES = """
open("user.py", "w").write('''
import caffe
import numpy as np
class Twice(caffe.Layer):
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top): top[0].data[...] = 2 * bottom[0].data
    def backward(self, top, propagate_down, bottom): pass
''')
open("net.prototxt", "w").write('''
layer { name: "d" type: "Input" top: "d" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }
layer { name: "c" type: "Convolution" bottom: "d" top: "c" convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "p" type: "Python" bottom: "c" top: "p" python_param { module: "user" layer: "Twice" } }
''')
fcaffe.set_mode_cpu()
net = fcaffe.Net("net.prototxt", fcaffe.TEST)
net.forward()
net.backward()
net.save("x.caffemodel")
"""


def run(code: str, folder: Path, *words: str, **environment: str) -> Any:
    """What the code prints as JSON, in a Python whose environment says nothing of threads."""
    told = (*threads.VARIABLES, *threads.RANKS, "GOMP_SPINCOUNT", "OPENBLAS_THREAD_TIMEOUT")
    kept = {name: value for name, value in os.environ.items() if name not in told}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_and_using_it_changes_nothing(tmp_path: Path) -> None:
    code = STATE + IMPORTS + USES
    code += "sys.modules.pop('user')\nprint(json.dumps([before, imported, state()]))"
    before, imported, used = run(code, tmp_path, "--reproducible", "8", "-solver", "--help", PYTHONSAFEPATH="1")
    assert imported == before
    assert {key: value for key, value in used.items() if value != before[key]} == {}


def test_importing_loads_next_to_nothing(tmp_path: Path) -> None:
    code = "import sys, json, fcaffe; print(json.dumps(['numpy' in sys.modules, sorted(dir(fcaffe))]))"
    has_numpy, names = run(code, tmp_path)
    assert not has_numpy and {"Net", "TEST", "get_solver", "layers"} <= set(names)
    code = (
        "import fcaffe as caffe, json; from fcaffe import *\n"
        "net = caffe.proto.caffe_pb2.NetParameter()\n"
        "print(json.dumps([caffe.TRAIN, Net is caffe.Net, len(caffe.layer_type_list()), hasattr(caffe, 'nothing')]))"
    )
    assert run(code, tmp_path) == [0, True, len(names_of_layers()), False]


def names_of_layers() -> list[str]:
    from fcaffe import layer_type_list

    return layer_type_list()


def test_the_names_of_the_package_are_those_of_the_interface_and_of_the_stub() -> None:
    import fcaffe
    from fcaffe.pycaffe import interface

    stub = ast.parse((ROOT / "fcaffe" / "__init__.pyi").read_text())
    stars = [node.module for node in stub.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    assert stars == ["fcaffe.pycaffe.interface"]
    assert set(fcaffe.__all__) == {*interface.__all__, "layers"} and {*fcaffe.__all__} <= {*dir(fcaffe)}


@pytest.mark.parametrize(
    "module", ["fcaffe.pycaffe.interface", "fcaffe.tools.nets", "fcaffe.tools.shapes", "fcaffe.cli.train"]
)
def test_whoever_builds_nets_loads_all_layer_types(module: str, tmp_path: Path) -> None:
    code = f"import json, {module}; from fcaffe.net import layer_types; print(json.dumps(layer_types()))"
    assert run(code, tmp_path) == names_of_layers()


def test_the_command_line_tells_the_libraries_before_they_are_loaded(tmp_path: Path) -> None:
    code = (
        "import sys, os, json, importlib.abc\n"
        "class Look(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'numpy':\n"
        "            print(json.dumps(dict(os.environ)), file=open('found', 'a'), flush=True)\n"
        "            os._exit(0)\n"
        "sys.meta_path.insert(0, Look())\nfrom fcaffe.cli import main\n"
        "for line in sys.argv[1:]:\n"
        "    if not os.fork():\n"
        "        sys.argv[1:] = line.split()\n"
        "        main()\n"
        "    os.wait()\n"
        "print(json.dumps([json.loads(line) for line in open('found')]))"
    )
    (tmp_path / "flags").write_text("--reproducible=4\n")
    several = str(threads.available_cpus())
    expected = {
        "train": several,
        "train --reproducible 4": "1",
        "-reproducible=4 train": "1",
        "train --flagfile=flags": "1",
        "train --flagfile flags --reproducible=0": several,
        "train --fromenv=reproducible": "1",
        "train --reproducible=0": several,
        "train -- --reproducible=4": several,
    }
    found = run(code, tmp_path, *expected, FLAGS_reproducible="2")
    assert found[0]["GOMP_SPINCOUNT"] == threads.SPINS and found[0]["OPENBLAS_THREAD_TIMEOUT"] == "4"
    for (words, wanted), then in zip(expected.items(), found, strict=True):
        assert {then[name] for name in threads.VARIABLES} == {wanted}, words
    given = {"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "7", "OPENBLAS_THREAD_TIMEOUT": "9"}
    (tmp_path / "found").unlink()
    (then,) = run(code, tmp_path, "train", **given)
    assert given.items() <= then.items() and "MKL_NUM_THREADS" not in then


@pytest.mark.skipif(not find_onednn() or threads.available_cpus() < 2, reason="needs oneDNN and two CPUs")
def test_ranks_of_a_library_share_the_cpus_too(tmp_path: Path) -> None:
    """oneDNN takes no more threads than this rank's part, and OpenMP is as the program has it after each call."""
    code = (
        "import ctypes, json, os\nimport numpy as np\nfrom fcaffe.engines import cpu_engine, find_onednn\n"
        "engine, omp = cpu_engine(), ctypes.CDLL(find_onednn())\n"
        "before, most = len(os.listdir('/proc/self/task')), omp.omp_get_max_threads()\n"
        "a = np.ones((512, 512), np.float32)\n"
        "engine.inner_product_forward(a, a, None, np.empty_like(a), False)\n"
        "threads = len(os.listdir('/proc/self/task')) - before\n"
        "print(json.dumps([1 + threads, omp.omp_get_max_threads() == most]))"
    )
    cpus = len(os.sched_getaffinity(0))
    assert run(code, tmp_path) == [threads.available_cpus(), True]
    assert run(code, tmp_path, MPI_LOCALNRANKS=str(cpus)) == [1, True]
