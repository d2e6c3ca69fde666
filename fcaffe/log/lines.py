"""Log lines in glog's format, written to Outlets: standard error and log files; Sentence and Caffe's formats of values.

A prefix is `LMMDD HH:MM:SS.uuuuuu TID file:line] `: level, month and day, time, thread. Only the first line of a
message has it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import math
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fcaffe.errors import FcaffeError
from fcaffe.shown import shown, shown_lines

LEVELS = "IWEF"
FULL = (errno.ENOSPC, errno.EDQUOT)  # a run goes on, and starts, without a log file


class Outlet(io.RawIOBase):
    """An open file whose disk may fill up, whose terminal may close, or whose reader may exit.

    A `lasting` outlet ignores write errors. It discards the text, tries again with the next one, and after a success
    first writes `notice(lines, reason)`, which says how many lines are missing. Another outlet raises the OSError with
    its own name as the file name. `problem` is the error of the last write, or None.
    """

    def __init__(
        self,
        descriptor: int,
        name: str,
        lasting: bool = True,
        notice: Callable[[int, str], str] = lambda lines, reason: "",
    ) -> None:
        self.name = name
        self.lasting = lasting
        self.problem: OSError | None = None
        self._descriptor = descriptor
        self._notice = notice
        self._missing = 0  # lines
        self._torn = False  # whether the last write ended within a line

    def write(self, data: Any) -> int:
        content = bytes(data)
        try:
            if self.problem is not None:
                reason = self.problem.strerror or str(self.problem)
                notice = self._notice(self._missing, reason) if self._missing else ""
                self._put(b"\n" * self._torn + notice.encode())
                self.problem, self._missing = None, 0
            self._put(content)
        except OSError as problem:
            self.problem = problem
            self._missing += content.count(b"\n")
            if not self.lasting:
                reason = f"{problem.strerror}; send it to where it can be written"
                raise OSError(problem.errno, reason, self.name) from problem
        return len(content)

    def _put(self, content: bytes) -> None:
        while content:
            try:
                done = os.write(self._descriptor, content)
            except BlockingIOError:  # another program has set it to non-blocking: wait for it
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll()
                continue
            self._torn = content[done - 1] != ord("\n")
            content = content[done:]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a thread that is not in the forked process may hold it
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_files: list[Outlet] = []
_level = os.environ.get("GLOG_minloglevel", "")  # noqa: SIM112 - glog's name
_minimum = int(_level) if _level.isdecimal() else 0
_show: Callable[[str], None] | None = None

LONG = 300  # lines of a log, from which on its warnings stand once more at its end
_lines = 0  # of this command
_warnings: dict[str, None] = {}  # in their order, each once


def prefix(level: str, source: str) -> str:
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    return f"{level}{stamp}.{int(now % 1 * 1e6):06d} {threading.get_native_id():5d} {source}] "


def write(level: str, message: str, source: str | None = None, as_is: bool = False) -> None:
    """Write a message to stderr and to the log files. `source` defaults to the caller's file and line.

    The message is one line (see `fcaffe.shown`), unless the caller writes it `as_is`.
    """
    global _lines
    if LEVELS.index(level) < _minimum:
        return
    _lines += 1
    if level == "W":
        _warnings[message] = None
    if source is None:
        frame = sys._getframe(1)
        source = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    line = prefix(level, source) + (message.removesuffix("\n") if as_is else shown(message)) + "\n"
    with _lock:
        (_show or _emit)(line)
        for file in _files:
            failed_before = file.problem is not None
            file.write(line.encode(errors="backslashreplace"))
            if file.problem is not None and not failed_before:
                reason = f"{file.problem.strerror}; each line is tried again"
                _emit(prefix("W", _here()) + f"No more lines go to {file.name}: {reason}\n")


def _emit(line: str) -> None:
    """Write to the current standard error. Errors are ignored, so that a run goes on without it."""
    stream = sys.stderr
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        if stream is sys.__stderr__ and stream is not None:  # Python's buffer would raise again at exit
            stream.flush()
            standard_error.write(line.encode(errors="backslashreplace"))
        elif stream is not None:
            stream.write(line)
            stream.flush()


def lines_missing(lines: int, reason: str) -> str:
    """The line that replaces lines that could not be written."""
    return prefix("W", _here()) + f"{lines} lines are missing here: {reason}\n"


def _here() -> str:
    return f"{os.path.basename(__file__)}:{sys._getframe(1).f_lineno}"


standard_error = Outlet(2, "standard error", notice=lines_missing)


info = functools.partial(write, "I")
warning = functools.partial(write, "W")
error = functools.partial(write, "E")
fatal = functools.partial(write, "F")  # the last line before an exit; the caller exits


def add_file(path: str) -> None:
    """Append every further line to `path` too. A full disk is a warning; other errors raise FcaffeError."""
    try:
        _files.append(Outlet(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), path, notice=lines_missing))
    except OSError as problem:
        if problem.errno in FULL:
            warning(f"No log is written to {path}: {problem.strerror}")
            return
        message = f"log file {path}: cannot write it ({problem.strerror}); name a file in a folder that you may write"
        raise FcaffeError(message) from problem


def close_files() -> None:
    while _files:
        with contextlib.suppress(OSError):
            os.close(_files.pop().fileno())


def begin_command() -> None:
    """Count the lines and warnings of a command from here on."""
    global _lines
    _lines = 0
    _warnings.clear()


def end_command() -> None:
    """Repeat the warnings at the end of a long log."""
    if _lines >= LONG and _warnings:
        told = list(_warnings)
        write("W", f"{len(told)} warning{'s' * (len(told) > 1)} of this log:", _here())
        for message in told:
            write("W", message, _here())


def set_minimum(level: int) -> None:
    """Omit lines below `level` (glog's minloglevel: 0 info, 1 warning, 2 error, 3 fatal)."""
    global _minimum
    _minimum = min(level, LEVELS.index("F"))


@contextlib.contextmanager
def quiet(level: int = 1) -> Iterator[None]:
    """Omit lines below this level in the body of the `with`: by default those of level I."""
    before = _minimum
    set_minimum(max(before, level))
    try:
        yield
    finally:
        set_minimum(before)


def set_show(show: Callable[[str], None] | None) -> None:
    """Set a function that writes lines to stderr, such as one that redraws a progress bar below them."""
    global _show
    _show = show


class Sentence:
    """Lines that Caffe prints. Calling it with values for its fields, in the order of the text, logs them.

    The field `text` is a message in protobuf's notation, which has lines of its own. Other fields are names.
    Each line is followed by its source tag in Caffe, in which fields are allowed as well.
    """

    def __init__(self, *lines: str, level: str = "I") -> None:
        self._lines = list(zip(lines[::2], lines[1::2], strict=True))
        self._names = list(dict.fromkeys(re.findall(r"\{(\w+)", "".join(lines))))
        self._level = level

    def __call__(self, *values: object) -> None:
        fields = {
            name: (shown_lines if name == "text" else shown)(value) if isinstance(value, str) else value
            for name, value in zip(self._names, values, strict=True)
        }
        for text, source in self._lines:
            write(self._level, text.format(**fields), source.format(**fields), as_is=True)


def number(value: float) -> str:
    """`value` as C++'s `ostream <<` prints a float: with six significant digits, `1e-05`."""
    return f"{value:.6g}"


def weighted(name: str, value: float, loss_weight: float) -> str:
    """A net's output and, if it is a loss, its weighted value."""
    text = f"{name} = {number(value)}"
    return text + f" (* {number(loss_weight)} = {number(loss_weight * value)} loss)" if loss_weight else text


def shape_string(shape: tuple[int, ...]) -> str:
    """The dimensions and, in parentheses, their product."""
    return "".join(f"{dim} " for dim in shape) + f"({math.prod(shape)})"


def message_string(text: str) -> str:
    """Converts a message as Python's protobuf prints it to C++'s form: `lr_mult: 1`, not `lr_mult: 1.0`."""
    return re.sub(r"^( *\w+: -?\d+)\.0$", r"\1", text, flags=re.MULTILINE)
