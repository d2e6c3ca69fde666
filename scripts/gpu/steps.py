"""Steps of a check: each one has a time limit, leaves no process behind, and writes its output as it comes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OVER = "the time for tests is over"  # why tests were skipped; see deadline.py
TIMED_OUT = 124  # as of timeout(1)
GRACE = 5  # seconds from SIGTERM to SIGKILL
LAST_TEST = 30  # seconds that the tests which run at their deadline may take
PROCESSES = 6  # for tests
REPORTING = 15  # seconds that the race has for its tables
MACHINE = """
import importlib.metadata, platform
names = "cupy", "nvidia", "cudnn", "torch", "triton", "numpy", "protobuf", "pytest", "mpi4py", "dtypes", "lmdb", "click"
print("Python", platform.python_version())
for package in sorted(importlib.metadata.distributions(), key=lambda package: package.name):
    if any(name in package.name for name in names):
        print(package.name, package.version)
"""


def has(module: str) -> bool:
    """Whether a Python module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def environment(**variables: str) -> dict[str, str]:
    """That of this process, in which fcaffe is found in this checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **variables}


def start(
    command: Sequence[str], output: Path, variables: Mapping[str, str], errors: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own. Output is appended to a file, and errors to it or another one."""
    with open(output, "a") as out, open(errors or output, "a") as err:
        return subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )


def end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait at most so long for a process, then end it and all that it has started. Returns its exit code."""
    try:
        return process.wait(max(0, seconds))
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(patience)
                _wait_for_group(process.pid, patience or GRACE)


def _wait_for_group(group: int, seconds: float) -> None:
    """Wait for children that have outlived the group's leader. Raises ProcessLookupError when there are none."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        os.killpg(group, 0)
        time.sleep(0.05)


def run(command: Sequence[str], seconds: float, output: Path, **variables: str) -> int:
    """Run a command; see `start` and `end`."""
    return end(start(command, output, environment(**variables)), seconds)


def run_tests(
    words: Sequence[str], seconds: float, output: Path, failed: Path, processes: int = 4, last: float = LAST_TEST
) -> int:
    """Run pytest with these words. It begins no test in the `last` seconds; `failed` has the failures as they come."""
    command = [sys.executable, "-m", "pytest", "-p", "deadline", *words, "-rfs", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-W", "default"]  # other versions of packages may warn here
    command += ["-n", str(processes), "--dist", "worksteal"] if has("xdist") and processes > 1 else []
    plugins = os.pathsep.join([str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    ends = time.time() + seconds - min(last, seconds)
    variables = {"PYTHONPATH": plugins, "FCAFFE_TESTS_END": str(ends), "FCAFFE_TESTS_FAILED": str(failed.resolve())}
    return run(command, seconds, output, **variables)


class Run:
    """Steps on a device within some seconds. Each step writes to a file of its name, and its end to steps.txt."""

    def __init__(self, device: int, out: Path, seconds: float) -> None:
        self.device, self.out = device, out
        out.mkdir(parents=True, exist_ok=True)
        self.began, self.ends = time.monotonic(), time.monotonic() + seconds
        self.failed = False

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def file(self, name: str) -> Path:
        return self.out / f"{name}.txt"

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:6.1f} s  {text}"
        print(line, flush=True)
        with open(self.file("steps"), "a") as file:
            file.write(line + "\n")

    def fail(self, text: str) -> None:
        self.failed = True
        self.say(text)

    def step(self, name: str, seconds: float, *words: str) -> int:
        """Run a command of this Python, for no longer than these seconds and what is left of the whole."""
        return self._noted(name, run([sys.executable, "-u", *words], min(seconds, self.left), self.file(name)))

    def _noted(self, name: str, code: int) -> int:
        last = self.file(name).read_text(errors="replace").strip().splitlines()[-1:]
        what = {0: "done", TIMED_OUT: "TIME IS UP"}.get(code, f"FAILED with exit code {code}")
        (self.fail if code else self.say)(f"{name}: {what}; {' '.join(last)[:160]}")
        return code

    def machine(self) -> None:
        if shutil.which("nvidia-smi"):
            run(["nvidia-smi"], min(20, self.left), self.file("machine"))
        self.step("machine", 20, "-c", MACHINE)

    def tests(self, name: str, seconds: float, words: Sequence[str]) -> None:
        """Run the tests marked gpu of these files. One that is not reached counts as a failure."""
        output, failures = self.file(name), self.file("failures")
        code = run_tests([*words, "-m", "gpu"], min(seconds, self.left), output, failures, PROCESSES)
        self._noted(name, code or int(OVER in output.read_text(errors="replace")))

    def race(self, *words: str) -> None:
        """Training and inference against PyTorch, in the time that is left."""
        flags = ["--device", str(self.device), "--rounds", "3", "--json", str(self.out.resolve() / "race.json")]
        flags += ["--seconds-budget", f"{max(1, self.left - REPORTING):.0f}", *words]
        self.step("race", self.left, str(ROOT / "scripts" / "bench" / "gpu.py"), *flags)

    def end(self) -> int:
        self.say("the end")
        return int(self.failed)
