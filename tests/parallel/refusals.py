"""What ranks use in place of pytest, which each of them would load for a quarter of a second."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refused(error: type[Exception], words: str) -> Iterator[None]:
    """As pytest.raises(error, match=words)."""
    try:
        yield
    except error as problem:
        assert re.search(words, str(problem)), f"{problem}: not {words}"
    else:
        raise AssertionError(f"no {error.__name__}: {words}")
