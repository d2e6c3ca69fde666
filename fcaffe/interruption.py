"""Ctrl-C in the command line, from its first import to its end.

Imports take half a second, and Ctrl-C must not print a traceback of them. If fcaffe was started as a command, SIGINT
silently ends the process with exit code 130 while modules are imported, raises KeyboardInterrupt while a command runs,
and ends the process again afterwards. In another program the signals are not fcaffe's.

This module is imported first, so it imports next to nothing: `signal` and `typing` take longer to load than all of it.
"""

import _signal as signal
import os
import sys

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
PROGRAMS = (  # the installed programs; pyproject.toml lists the same
    "fcaffe",
    "caffe",
    "convert_annoset",
    "convert_imageset",
    "convert_mnist_data",
    "convert_mnist_siamese_data",
    "convert_cifar_data",
    "compute_image_mean",
    "extract_features",
    "upgrade_net_proto_text",
    "upgrade_net_proto_binary",
    "upgrade_solver_proto_text",
)

is_command = False  # whether this process was started as a command
_came = False


def program_name() -> str:
    """The name that this process was started by, without Caffe's ending .bin."""
    return os.path.basename(sys.argv[0] if sys.argv else "").removesuffix(".bin")


def started_as_command() -> bool:
    """Whether this process is `fcaffe`, another name of it or `python -m fcaffe`."""
    if program_name() in PROGRAMS:
        return True
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]  # the interpreter's arguments
    return words[-2:] == ["-m", "fcaffe"] or words[-1:] == ["-mfcaffe"]


def begin() -> None:
    """In a command let SIGINT end the process at once, unless its handler was changed (as nohup does)."""
    global is_command
    is_command = started_as_command()
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook = _unraisable


def raise_in_command() -> None:
    """Let the next SIGINT raise KeyboardInterrupt, and a second one end the process at once."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _raise)


def end() -> None:
    """Let SIGINT end the process at once again."""
    if signal.getsignal(signal.SIGINT) is _raise:
        signal.signal(signal.SIGINT, _leave)


def has_come() -> bool:
    """Whether SIGINT came; KeyboardInterrupt may have been turned into another exception, or not be raised yet."""
    return _came


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def _raise(number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt, or end the process within an import.

    A module may ignore every exception of a part of its import, or turn it into another one, as some of NumPy's do.
    """
    global _came
    _came = True
    signal.signal(signal.SIGINT, _leave)
    if _imports(frame):
        _leave(number, frame)
    raise KeyboardInterrupt


def _imports(frame: "FrameType | None") -> bool:
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """End the process on a KeyboardInterrupt in a destructor, which Python would print and ignore."""
    if isinstance(problem.exc_value, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(problem)
