"""Files that appear whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fcaffe.errors import SnapshotError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`, for the body to write; it takes the place of `path` when the body is done.

    If anything fails, the temporary file goes and an old file at `path` stays as it was. An OSError (no space, no
    permission, no such folder) becomes a SnapshotError that names `path`.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            message = f"cannot write {path}: {error.strerror or error}; make room there or name another place"
            raise SnapshotError(f"{message} (an earlier file of that name is as it was)") from error
        raise
