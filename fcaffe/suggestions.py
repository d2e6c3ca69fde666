"""What a misspelt name was perhaps meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is; whether letters are large or small does not count."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], before: str = "") -> str:
    """The nearest known name as the end of a message, with what stands `before` it; empty if none is near."""
    near = nearest(name, known)
    return f" (did you mean {before}{near}?)" if near else ""
