"""Ctrl-C in the command line, from its first import to its end.

Imports take half a second, and Ctrl-C must not print a traceback of them. If fcaffe was started as a command, SIGINT
silently ends the process with exit code 130 while modules are imported, raises KeyboardInterrupt while a command runs,
and ends the process again afterwards. In another program the signals are not fcaffe's.

This module is imported first, so it imports next to nothing: `signal` and `typing` take longer to load than all of it.
"""

import _signal as signal
import os
import sys

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
_raised = False


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
    """Let SIGINT end the process at once again.

    When KeyboardInterrupt passes through `exec` of a string, which dataclasses use, Python notes it as unhandled, and
    would die of SIGINT at exit even though it was caught. The next evaluation of a string clears that note.
    """
    if signal.getsignal(signal.SIGINT) is _raise:
        signal.signal(signal.SIGINT, _leave)
    eval("0")


def has_come() -> bool:
    """Whether KeyboardInterrupt was raised; some libraries turn it into another exception while they are imported."""
    return _raised


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def _raise(number: int, frame: object) -> None:
    global _raised
    signal.signal(signal.SIGINT, _leave)
    _raised = True
    raise KeyboardInterrupt


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """End the process on a KeyboardInterrupt in a destructor, which Python would print and ignore."""
    if isinstance(problem.exc_value, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(problem)
