"""`fcaffe run`: a script finds its process as `python script.py` makes it, but that `import caffe` means fcaffe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fcaffe
from fcaffe.as_caffe import TOP_LEVEL
from fcaffe.cli.engine import find_devices

ROOT = Path(fcaffe.__file__).parents[1]
FCAFFE = [sys.executable, "-m", "fcaffe"]
RUN = [*FCAFFE, "run"]


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def assert_same(folder: Path, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script says and ends the same by `python` and by `fcaffe run`; what it says there."""
    (folder / "script.py").write_text(script)
    by_python = run([sys.executable, "script.py", *words], folder, **environment)
    by_fcaffe = run([*RUN, "script.py", *words], folder, **environment)
    assert by_fcaffe.stdout == by_python.stdout
    assert by_fcaffe.stderr == by_python.stderr
    assert by_fcaffe.returncode == by_python.returncode
    return by_fcaffe


PROCESS = """
import os, signal, sys, threading
print(sys.argv, sys.path, __name__, __file__, __spec__, __package__, __doc__, sorted(globals()))
print(sys.modules["__main__"].__dict__ is globals(), type(__loader__).__name__, signal.getsignal(signal.SIGINT))
print(sorted(os.environ), sys.stdout, sys.stderr, sys.excepthook, threading.active_count())
print([name for name in ("numpy", "click", "fcaffe.cli", "fcaffe.log") if name in sys.modules])
"""


@pytest.mark.parametrize("words", [[], ["--help", "-gpu=0", "--", "-x", "two words"]])
def test_arguments_path_and_process(tmp_path: Path, words: list[str]) -> None:
    assert "two words" in assert_same(tmp_path, PROCESS, *words).stdout or not words
    assert_same(tmp_path, PROCESS, PYTHONSAFEPATH="1")


def test_a_script_by_way_of_a_link_finds_what_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "script.py").write_text("import beside, sys; print(sys.argv, __file__)")
    (tmp_path / "there" / "beside.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "there" / "script.py")
    done, expected = (run([*command, "link.py"], tmp_path) for command in (RUN, [sys.executable]))
    assert done.stdout == expected.stdout != "", done.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no such model')", 1),
        ("def f():\n    raise ValueError('wrong')\n\n\nf()\n", 1),
        ("x = = 1\n", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import sys; sys.excepthook = lambda *error: print('mine', error[1]); 1 / 0", 1),
        ("import atexit; atexit.register(print, 'at exit'); import no_such_module", 1),
        ("import os; os._exit(3)", 3),
    ],
)
def test_ends_and_tracebacks(tmp_path: Path, script: str, code: int) -> None:
    assert assert_same(tmp_path, script).returncode == code


@pytest.mark.parametrize(
    "script",
    [
        "import sys; print(sys.argv, sys.path, __name__, __file__, __package__, __spec__.name, sorted(globals()))",
        "1 / 0",
        "from . import nothing",
        "import atexit, pickle\nclass Thing: pass\natexit.register(lambda: print(pickle.loads(pickle.dumps(Thing()))))",
    ],
)
def test_a_module(tmp_path: Path, script: str) -> None:
    """`fcaffe run -m` does what `python -m` does."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(script)
    words = ["-m", "package", "-f", "--help"]
    by_python, by_fcaffe = (run([*command, *words], tmp_path) for command in ([sys.executable], RUN))
    without_address = [re.sub("0x[0-9a-f]+", "", done.stdout) for done in (by_python, by_fcaffe)]
    assert without_address[0] == without_address[1]
    assert by_fcaffe.stderr == by_python.stderr
    assert by_fcaffe.returncode == by_python.returncode


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    done = run([*RUN, "-m", "missing_module"], tmp_path)
    assert done.returncode == 1 and "No module named missing_module" in done.stderr


RIVAL = """
import sys
sys.path.insert(0, "checkout/python")
import caffe, caffe.proto.caffe_pb2
from caffe import Net
print(caffe.__version__, caffe.Net is __import__("fcaffe").Net is Net, hasattr(caffe, "rival"))
"""


def test_caffe_is_fcaffe_wherever_another_one_lies(tmp_path: Path) -> None:
    rival = tmp_path / "checkout" / "python" / "caffe"
    rival.mkdir(parents=True)
    (rival / "__init__.py").write_text("rival = 1\nraise ImportError('No module named _caffe')\n")
    (tmp_path / "script.py").write_text(RIVAL)
    for words in (["script.py"], ["-m", "script"]):
        done = run([*RUN, *words], tmp_path, PYTHONPATH=os.pathsep.join([str(ROOT), str(rival.parent)]))
        assert done.stdout == "1.0.0 True False\n", done.stderr


def test_scripts_for_gpus_run_without_one(tmp_path: Path) -> None:
    if find_devices().count:
        pytest.skip("there is a GPU")
    (tmp_path / "script.py").write_text("import caffe; caffe.set_device(0); print(caffe.NetSpec)")
    refused = run([*RUN, "script.py"], tmp_path)
    assert refused.returncode == 1 and "call caffe.set_mode_cpu()" in refused.stderr.splitlines()[-1]
    for done in (
        run([*RUN, "--gpu-optional", "script.py"], tmp_path),
        run([*RUN, "script.py"], tmp_path, FCAFFE_GPU="optional"),
    ):
        assert done.returncode == 0 and done.stdout.startswith("<class")
        assert (
            done.stderr.startswith("W") and "set_device(0): there is no" in done.stderr and done.stderr.count("\n") == 1
        )


def test_glogs_variable_counts_until_caffe_is_imported(tmp_path: Path) -> None:
    script = (
        "import os; os.environ['GLOG_minloglevel'] = '2'\nimport caffe\ncaffe.log('dropped')\n"
        "caffe.init_log(0, True)\ncaffe.log('shown')\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = run([*RUN, "script.py"], tmp_path)
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert done.stderr.endswith("_caffe.cpp:68] shown\n")


def test_ctrl_c_is_pythons(tmp_path: Path) -> None:
    script = "print('ready', flush=True)\nimport time\ntry:\n    time.sleep(60)\nfinally:\n    print('tidied')\n"
    (tmp_path / "script.py").write_text(script)
    command = [*RUN, "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=300)
    assert (process.returncode, out) == (-signal.SIGINT, "tidied\n")
    assert error.endswith("KeyboardInterrupt\n") and "as_caffe.py" not in error


SPAWNS = """
import caffe, multiprocessing
def work(): print(caffe.__version__, caffe.__name__, flush=True)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


def test_a_process_that_a_script_spawns_finds_the_caffe_of_the_path(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(TOP_LEVEL)])
    assert assert_same(tmp_path, SPAWNS, PYTHONPATH=path).stdout == "1.0.0 caffe\n"


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    done = run([*RUN, "missing.py", "--flag"], tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "fcaffe run: can't open file 'missing.py': No such file or directory\n",
    )


def test_without_a_script_it_says_what_it_needs(tmp_path: Path) -> None:
    done = run(RUN, tmp_path)
    assert done.returncode == 134 and "run needs a script" in done.stderr
