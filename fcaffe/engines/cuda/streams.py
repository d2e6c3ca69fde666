"""The stream that CuPy computes on."""

from __future__ import annotations

from typing import Any


def make_current(stream: Any) -> None:
    """Let CuPy compute on this stream from now on, in this thread.

    `Stream.use` would not last. CuPy's `ndarray.get` contains a `with stream`, whose end returns to the stream of the
    outer `with`: without one, the default stream.
    """
    stream.__enter__()
