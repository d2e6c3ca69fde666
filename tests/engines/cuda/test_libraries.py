"""What the GPU engine needs: each thing that may be missing is named, with what to install."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcaffe.engines.cuda import driver, libraries
from fcaffe.errors import UsageError
from tests.engines.cuda.fake_driver import MEMORY, FakeDriver


class Machine:
    """What `libraries` finds: a driver, Python modules by name, and shared libraries by soname."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver: Any = FakeDriver()
        self.cuda = 13
        runtime = SimpleNamespace(runtimeGetVersion=lambda: 1000 * self.cuda + 20)
        nvrtc, cublas = SimpleNamespace(getVersion=lambda: (self.cuda, 0)), SimpleNamespace()
        self.modules: dict[str, Any] = {
            "cupy": SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, nvrtc=nvrtc, cublas=cublas)),
            "cudnn": SimpleNamespace(),
            "ml_dtypes": SimpleNamespace(),
        }
        self.libraries = {"libcudnn.so.9": True}
        monkeypatch.setattr(driver, "open_library", self.open_driver)
        monkeypatch.setattr(libraries.importlib, "import_module", self.import_module)
        monkeypatch.setattr(libraries, "_preload", lambda name, major: self.libraries.get(f"lib{name}.so.{major}"))

    def open_driver(self) -> Any:
        if self.driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return self.driver

    def import_module(self, name: str) -> Any:
        found = self.modules.get(name, ModuleNotFoundError(f"No module named '{name}'", name=name))
        if isinstance(found, Exception):
            raise found
        return found

    def remove(self, attribute: str) -> None:
        del self.modules["cupy"].cuda.__dict__[attribute]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_all_is_there(machine: Machine) -> None:
    for math in ("fp32", "tf32", "fp16", "bf16"):
        assert libraries.load(0, math) == (machine.modules["cupy"], machine.modules["cudnn"])


def _set(**values: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.__dict__.update(values)


def _module(name: str, what: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.modules.update({name: what})


def _without(name: str) -> Callable[[Machine], None]:
    return lambda machine: machine.modules.pop(name)


CASES = [
    (_set(driver=None), "there is no NVIDIA driver, as libcuda.so.1 cannot be loaded: install the GPU's driver"),
    (_set(driver=FakeDriver(code=100)), "NVIDIA's driver sees no GPU: CUDA_VISIBLE_DEVICES is ''"),
    (_set(driver=FakeDriver(code=34)), "libcuda.so.1 is CUDA's stub for linking, not a driver"),
    (_set(driver=FakeDriver(code=803)), "NVIDIA's driver does not start; .* (error 803: so it is)"),
    (_set(driver=FakeDriver(("A", "B", "C"))), "there is no GPU 7 here, but 0 (A), 1 (B), 2 (C)"),
    (_without("cupy"), "CuPy is not installed: pip install '.[cuda13]'"),
    (_module("cupy", ImportError("no\nway")), "the package cupy is here but does not start (ImportError: no way)"),
    (
        _set(driver=FakeDriver(version=12080)),
        "CuPy here is for CUDA 13, and the driver for CUDA 12.8 at most: ",
    ),
    (
        _set(driver=FakeDriver(capability=(7, 0))),
        "GPU 0 (NVIDIA H200) has compute capability 7.0, and cuDNN 9 for",
    ),
    (lambda machine: machine.remove("nvrtc"), "NVRTC, CUDA's compiler, is missing (libnvrtc.so.13 cannot be loaded): "),
    (lambda machine: machine.remove("cublas"), "cuBLAS is missing (libcublas.so.13 cannot be loaded): pip install nv"),
    (lambda machine: machine.libraries.clear(), "cuDNN is missing (libcudnn.so.9 cannot be loaded): pip install 'nvi"),
    (_set(libraries={"libcudnn.so.8": True}), "cuDNN 9 is needed, and there is 8: pip install 'nvidia-cudnn-cu13>=9'"),
    (_without("cudnn"), "cuDNN's front end for Python is missing: pip install nvidia-cudnn-frontend==1.24.1"),
    *(
        (
            _set(driver=FakeDriver(capability=(7, 5))),
            f"GPU 0 .*, and --math {math} needs 8.0 or later; use --math fp32 or",
        )
        for math in ("tf32", "bf16")
    ),
    (_without("ml_dtypes"), "ml_dtypes (bfloat16 for NumPy) is missing: pip install ml_dtypes"),
    (_module("cudnn", AssertionError("two")), "the package cudnn is here but does not start (AssertionError: two)"),
]


@pytest.mark.parametrize(("change", "message"), CASES, ids=[message[:30] for _, message in CASES])
def test_what_is_missing_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, change: Callable[[Machine], None], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    change(machine)
    math = "tf32" if "tf32" in message else "bf16" if "bf" in message else "fp32"
    with pytest.raises(UsageError) as problem:
        libraries.load(7 if "no GPU 7" in message else 0, math)
    start, _, end = message.partition(".*")
    assert str(problem.value).startswith(start) and end in str(problem.value) and "\n" not in str(problem.value)


def test_packages_for_the_driver(machine: Machine) -> None:
    machine.modules.pop("cupy")
    for version, extra in ((11080, "cuda12"), (12040, "cuda12"), (13000, "cuda13"), (14010, "cuda13")):
        machine.driver = FakeDriver(version=version)
        with pytest.raises(UsageError, match=rf"pip install '\.\[{extra}\]'"):
            libraries.load()


def test_packages_of_cuda_12(machine: Machine) -> None:
    machine.cuda, machine.driver = 12, FakeDriver(capability=(7, 0))
    libraries.load()
    machine.remove("nvrtc")
    with pytest.raises(UsageError, match=r"pip install nvidia-cuda-nvrtc-cu12$"):
        libraries.load()


def test_what_the_driver_says(machine: Machine) -> None:
    machine.driver = FakeDriver(("A", "B"), 12080)
    found = driver.find_driver()
    assert found.version == (12, 8)
    assert [(gpu.name, gpu.address, gpu.memory) for gpu in found.gpus] == [
        ("A", "0000:0a:00.0", MEMORY),
        ("B", "0000:0b:00.0", MEMORY),
    ]
    assert found.gpus[1].capability == (9, 0) and found.gpus[1].three(driver.BLOCK_X) == (1024, 1024, 64)


def test_libraries_of_wheels_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LD_LIBRARY_PATH first, then NVIDIA's wheels, then PyTorch; and what is loaded already before all."""
    for folder in ("site/nvidia/cu13/lib", "site/nvidia/cudnn/lib", "site/torch/lib", "own"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "libx.so.13").write_text("")
    (tmp_path / "site/nvidia/cudnn/lib/libx.so.13").unlink()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), str(tmp_path / "site"), ""])
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'own'}")
    tried: list[str] = []

    def load(path: str, mode: int) -> Any:
        tried.append(path)
        assert mode & ctypes.RTLD_GLOBAL
        raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert libraries._preload("x", 13) is None
    places = [str(tmp_path / folder / "libx.so.13") for folder in ("own", "site/nvidia/cu13/lib", "site/torch/lib")]
    assert tried == ["libx.so.13", *places, "libx.so.13"]
