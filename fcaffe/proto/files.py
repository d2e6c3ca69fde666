"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fcaffe.errors import FcaffeError
from fcaffe.proto.leftovers import temporary_name


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], noun: str = "file", error: type[FcaffeError] = FcaffeError
) -> Iterator[Path]:
    """A temporary path beside `path`, for the body to write; it takes the place of `path` when the body is done.

    If anything fails, the temporary file goes and an old file at `path` stays as it was. An OSError (no space, no
    permission, no such folder) becomes an `error` that names `path`; `noun` says what was being written.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    temporary = target.with_name(temporary_name(target.name))
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            limit = " (ulimit -f limits the size of files)" if problem.errno == errno.EFBIG else ""
            raise error(
                f"cannot write {path}: {problem.strerror or problem}; make room there{limit} or name another place for "
                f"the {noun} (an earlier file of that name is as it was)"
            ) from problem
        raise
