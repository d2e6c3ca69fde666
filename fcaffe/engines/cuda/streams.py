"""The stream that CuPy computes on."""

from __future__ import annotations

from typing import Any


def make_current(stream: Any) -> None:
    """Let CuPy compute on this stream from now on, in this thread.

    Not by its `use`: the end of any `with stream`, of which `ndarray.get` has one, goes back to the stream of the
    `with` around that, and would find the default stream there.
    """
    stream.__enter__()
