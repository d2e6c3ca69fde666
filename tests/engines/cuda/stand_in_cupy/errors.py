"""CUDA's and CuPy's exceptions, and the list of what made the host wait."""

from __future__ import annotations

import os
import sys

FOLDER = os.path.dirname(__file__)

UNSUPPORTED_IN_CAPTURE = 900
CAPTURE_INVALIDATED = 901
CAPTURE_UNJOINED = 904
CAPTURE_ISOLATION = 905
CAPTURED_EVENT = 907
INVALID_VALUE = 1
INVALID_DEVICE = 101
INVALID_HANDLE = 400

NAMES = {
    INVALID_VALUE: "cudaErrorInvalidValue: invalid argument",
    INVALID_DEVICE: "cudaErrorInvalidDevice: invalid device ordinal",
    INVALID_HANDLE: "cudaErrorInvalidResourceHandle: invalid resource handle",
    UNSUPPORTED_IN_CAPTURE: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    CAPTURE_INVALIDATED: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during capture",
    CAPTURE_UNJOINED: "cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work",
    CAPTURE_ISOLATION: "cudaErrorStreamCaptureIsolation: dependency created on uncaptured work in another stream",
    CAPTURED_EVENT: "cudaErrorCapturedEvent: operation not permitted on an event last recorded in a capturing stream",
}

synchronisations: list[str] = []  # "what at file:line", where the host waited for the device
uploads: list[str] = []  # likewise, where pageable host memory was copied to the device


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, why: str = "") -> None:
        self.status = status
        super().__init__(NAMES.get(status, f"cudaError {status}") + (f" ({why})" if why else ""))


class OutOfMemoryError(MemoryError):
    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        text = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(text + (f", limit set to: {limit:,} bytes)." if limit else ")."))


class CompileException(Exception):  # noqa: N818
    """NVRTC refused a source."""


class CUDADriverError(RuntimeError):
    pass


class DataRaceError(AssertionError):
    """Host memory changed while a copy from it was under way."""


def caller() -> str:
    """file:line of whoever called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == FOLDER:
        frame = frame.f_back
    name = frame.f_code.co_filename
    return f"{name[name.find('fcaffe/') :] if 'fcaffe/' in name else name}:{frame.f_lineno}"
