"""Sets up the log as glog's flags and environment variables say."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.interruption import PROGRAMS, program_name
from fcaffe.jobs.started import started_as
from fcaffe.output_files import check_output, remove_leftovers, starting, temporary_name

FLAGS = ("log", "log_dir", "minloglevel", "logtostderr")
LOG = starting("log", rb".*?^[IWEF](\d{4})?\d{4} \d\d:\d\d:\d\d\.\d+ ")


def program() -> str:
    """Return the name that the command was called by: `fcaffe`, `caffe` or one of Caffe's tools."""
    name = program_name()
    return name if name in PROGRAMS else "fcaffe"


def begin(flags: Mapping[str, Any]) -> None:
    """Set the log's lowest level, a file to append to, and a folder for glog's own file, by the values of FLAGS.

    Of several ranks, rank 0 logs; the others log fatal errors only.
    """
    start = started_as()
    if start is not None and start.rank > 0:
        log.set_minimum(log.LEVELS.index("F"))
        return
    if flags["minloglevel"] is not None:
        log.set_minimum(flags["minloglevel"])
    if file := flags["log"]:
        check_output(file, LOG)
        log.add_file(file)
    folder = flags["log_dir"] or os.environ.get("GLOG_log_dir", "")  # noqa: SIM112 - glog's name
    if folder and not flags["logtostderr"]:
        _add_glog_file(folder)


def _add_glog_file(folder: str) -> None:
    """Add the file `<program>.<host>.<user>.log.INFO.<date>-<time>.<pid>` and the link `<program>.INFO` to it."""
    host = socket.gethostname().partition(".")[0]
    started = time.localtime()
    stamp = time.strftime("%Y%m%d-%H%M%S", started)
    name = f"{program()}.{host}.{_user()}.log.INFO.{stamp}.{os.getpid()}"
    link = os.path.join(folder, f"{program()}.INFO")
    try:
        with open(os.path.join(folder, name), "a", encoding="utf-8") as file:
            file.write(f"Log file created at: {time.strftime('%Y/%m/%d %H:%M:%S', started)}\n")
            file.write(f"Running on machine: {host}\n")
            file.write("Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg\n")
        remove_leftovers(link)
        temporary = os.path.join(folder, temporary_name(os.path.basename(link)))
        os.symlink(name, temporary)
        os.replace(temporary, link)
    except OSError as problem:
        if problem.errno in log.FULL:
            log.warning(f"No log is written to log_dir {folder}: {problem.strerror}")
            return
        message = f"log_dir {folder}: cannot write there ({problem.strerror}); name a folder that exists"
        raise UsageError(message) from problem
    log.add_file(os.path.join(folder, name))


def _user() -> str:
    import getpass  # slow to load

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
