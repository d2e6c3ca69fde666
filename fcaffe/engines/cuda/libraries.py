"""Loads the libraries of the GPU engine: CuPy, NVRTC, cuBLAS, cuDNN and its front end. Errors name what is missing."""

from __future__ import annotations

import ctypes
import glob
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from fcaffe.engines.cuda.driver import Driver, Gpu, find_driver
from fcaffe.errors import UsageError

OLDEST = {12: (7, 0), 13: (7, 5)}  # compute capability that cuDNN 9 needs, by CUDA's major version
AMPERE = (8, 0)  # the first with TF32 and bfloat16
NEWEST_CUDA = max(OLDEST)


def load(device: int = 0, math: str = "fp32") -> tuple[Any, Any]:
    """The modules (cupy, cudnn) for the GPU of this number. Raises UsageError for the first thing that is missing."""
    driver = find_driver()
    gpu = find_gpu(device, driver)
    cupy = _need("cupy", "CuPy is not installed", _install(driver))
    cuda = cupy.cuda.runtime.runtimeGetVersion() // 1000
    if cuda > driver.version[0]:
        raise UsageError(
            f"CuPy here is for CUDA {cuda}, and the driver for CUDA {_dotted(driver.version)} at most: "
            f"pip uninstall cupy-cuda{cuda}x, then {_install(driver)}; or install a newer driver"
        )
    _check_capability(gpu, device, cuda, math)
    _load_library("nvrtc", "NVRTC, CUDA's compiler,", cuda, lambda: cupy.cuda.nvrtc.getVersion())
    _preload("cublasLt", cuda)
    _load_library("cublas", "cuBLAS", cuda, lambda: cupy.cuda.cublas)
    _load_cudnn_library(cuda)
    if math == "bf16":
        _need("ml_dtypes", "ml_dtypes (bfloat16 for NumPy) is missing", "pip install ml_dtypes")
    remedy = "pip install nvidia-cudnn-frontend==1.24.1"
    return cupy, _need("cudnn", "cuDNN's front end for Python is missing", remedy)


def find_gpu(device: int, driver: Driver | None = None) -> Gpu:
    """The GPU of this number. Raises UsageError, which lists the GPUs."""
    gpus = (driver or find_driver()).gpus
    if not 0 <= device < len(gpus):
        there = ", ".join(f"{number} ({gpu.name})" for number, gpu in enumerate(gpus))
        raise UsageError(f"there is no GPU {device} here, but {there}")
    return gpus[device]


def _install(driver: Driver) -> str:
    """The command that installs all packages for this driver."""
    extra = f"cuda{min(max(driver.version[0], min(OLDEST)), NEWEST_CUDA)}"
    return f"pip install '.[{extra}]' in fcaffe's repository"


def _need(module: str, missing: str, remedy: str) -> Any:
    """Import the module. Raises UsageError, which tells a missing module from one that fails to load."""
    try:
        return importlib.import_module(module)
    except Exception as problem:  # a broken package may raise anything
        if isinstance(problem, ImportError) and problem.name == module:
            raise UsageError(f"{missing}: {remedy}") from problem
        why = f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:200]
        raise UsageError(
            f"the package {module} is here but does not start ({why}): install it anew, {remedy}"
        ) from problem


def _check_capability(gpu: Gpu, device: int, cuda: int, math: str) -> None:
    oldest = OLDEST[min(max(cuda, min(OLDEST)), NEWEST_CUDA)]
    has = f"GPU {device} ({gpu.name}) has compute capability {_dotted(gpu.capability)}"
    if gpu.capability < oldest:
        older = "; with fcaffe[cuda12] 7.0 is enough" if OLDEST[12] <= gpu.capability else ""
        raise UsageError(f"{has}, and cuDNN 9 for CUDA {cuda} needs {_dotted(oldest)} or later{older}")
    if math in ("tf32", "bf16") and gpu.capability < AMPERE:
        raise UsageError(f"{has}, and --math {math} needs {_dotted(AMPERE)} or later; use --math fp32 or fp16")


def _load_library(name: str, title: str, cuda: int, use: Callable[[], Any]) -> None:
    """Load a library of CUDA, which both CuPy and cuDNN open by name; `use` lets CuPy open it."""
    _preload(name, cuda)
    try:
        use()
    except Exception as problem:
        package = f"nvidia-{'cuda-' * (name == 'nvrtc')}{name}{'-cu12' * (cuda == 12)}"
        raise UsageError(
            f"{title} is missing (lib{name}.so.{cuda} cannot be loaded): pip install {package}"
        ) from problem


def _load_cudnn_library(cuda: int) -> None:
    remedy = f"pip install 'nvidia-cudnn-cu{cuda}>=9'"
    if _preload("cudnn", 9) is None:
        older = next((major for major in (8, 7) if _preload("cudnn", major)), None)
        found = "is missing (libcudnn.so.9 cannot be loaded)" if older is None else f"9 is needed, and there is {older}"
        raise UsageError(f"cuDNN {found}: {remedy}")


def _preload(name: str, major: int) -> ctypes.CDLL | None:
    """Load lib<name>.so.<major> before CuPy and cuDNN open it by that name; None if it is not found.

    Searches the loaded libraries, LD_LIBRARY_PATH, NVIDIA's wheels, PyTorch's folder, and the system's folders.
    """
    soname = f"lib{name}.so.{major}"
    for path, mode in ((soname, os.RTLD_NOLOAD), *((path, 0) for path in _candidates(soname)), (soname, 0)):
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL | mode)
        except OSError:
            continue
    return None


def _candidates(soname: str) -> list[str]:
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for entry in dict.fromkeys(sys.path):
        folders += sorted(glob.glob(os.path.join(glob.escape(entry), "nvidia", "*", "lib")))
        folders.append(os.path.join(entry, "torch", "lib"))
    return [path for path in (os.path.join(folder, soname) for folder in folders) if os.path.exists(path)]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
