"""Ctrl-C and last words of the command line, from its first import to its end.

`import fcaffe` takes half a second, and Ctrl-C must not print a traceback of it. So where fcaffe was started as a
command (and only there: in somebody else's program signals are not ours) SIGINT ends the process with exit code 130 and
no word while modules are imported, raises KeyboardInterrupt while a command runs, and ends the process again after it.
Python itself takes some hundredths of a second before that, in which Ctrl-C has a traceback of Python's.

This is imported before everything else, and so itself imports next to nothing: `signal` and `typing` would take longer
than all that is here.
"""

import _signal as signal
import os
import sys

INTERRUPTED = 128 + signal.SIGINT
PROGRAMS = (  # that are installed; pyproject.toml has the same
    "fcaffe",
    "caffe",
    "convert_imageset",
    "compute_image_mean",
    "extract_features",
    "upgrade_net_proto_text",
    "upgrade_net_proto_binary",
    "upgrade_solver_proto_text",
)

is_command = False  # whether this process was started as one
_told = False


def started_as_command() -> bool:
    """Whether this process is `fcaffe`, another name of it or `python -m fcaffe`."""
    if os.path.basename(sys.argv[0] if sys.argv else "") in PROGRAMS:
        return True
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]  # those of the interpreter
    return words[-2:] == ["-m", "fcaffe"] or words[-1:] == ["-mfcaffe"]


def begin() -> None:
    """If this is a command, SIGINT ends the process at once, unless somebody has said otherwise (as nohup does)."""
    global is_command
    is_command = started_as_command()
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook = _unraisable


def raise_in_command() -> None:
    """From now on SIGINT raises KeyboardInterrupt, once; a second one ends the process at once."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _raise)


def end() -> None:
    """From now on SIGINT ends the process at once."""
    if signal.getsignal(signal.SIGINT) is _raise:
        signal.signal(signal.SIGINT, _leave)


def has_come() -> bool:
    """Whether KeyboardInterrupt was raised: some libraries make another exception of it while they are imported."""
    return _told


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def _raise(number: int, frame: object) -> None:
    global _told
    signal.signal(signal.SIGINT, _leave)
    _told = True
    raise KeyboardInterrupt


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """KeyboardInterrupt in a destructor, which Python would print and forget."""
    if isinstance(problem.exc_value, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(problem)
