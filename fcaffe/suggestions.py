"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar, ignoring case; None if none is similar."""
    import difflib  # slow to load, and needed for mistakes only

    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], before: str = "") -> str:
    """Return the end of a message that suggests the nearest known name, after `before`; '' if none is similar."""
    near = nearest(name, known)
    return f" (did you mean {before}{near}?)" if near else ""
