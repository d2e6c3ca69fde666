"""Caffe's spellings of flags, brought to the one that click reads.

As gflags has it: one dash or two, the value after a space or `=`, anywhere on the line, before the verb as well;
`_` and `-` in a name are the same; a boolean is `--flag`, `--flag=true` or `--noflag`; `--` ends the flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

BOOLEANS = {
    **dict.fromkeys(("1", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "f", "false", "n", "no"), False),
}


class FlagError(Exception):
    """A flag that nobody knows, or a value that it cannot have; the message has a line for each."""


def flag_name(option: str) -> str:
    """`--on-nan`, `-on_nan` -> `on_nan`."""
    return option.removeprefix("-").removeprefix("-").replace("-", "_")


def split(words: Sequence[str], options: Mapping[str, click.Option]) -> tuple[list[str], list[str]]:
    """(flags as `--name=value` or, for true booleans, `--name`; all other words). `options` is by `flag_name`."""
    flags: list[str] = []
    others: list[str] = []
    unknown: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others.extend(rest)
        elif word == "-" or not word.startswith("-"):
            others.append(word)
        else:
            given, equals, value = word.partition("=")
            name = flag_name(given)
            negated = name not in options and name.startswith("no") and _is_boolean(options.get(name[2:]))
            option = options.get(name[2:] if negated else name)
            if option is None:
                unknown.append(given.removeprefix("-").removeprefix("-"))
            elif _is_boolean(option):
                if _boolean(name, value if equals else "true") is not negated:
                    flags.append(option.opts[0])
            else:
                if not equals:
                    value = _next(rest, name)
                flags.append(f"{option.opts[0]}={value}")
    if unknown:
        raise FlagError("\n".join(f"unknown command line flag '{name}'" for name in unknown))
    return flags, others


def _is_boolean(option: click.Option | None) -> bool:
    return option is not None and option.is_flag


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in BOOLEANS:
        raise FlagError(f"illegal value '{value}' specified for bool flag '{name}'")
    return BOOLEANS[value.lower()]


def _next(rest: Iterator[str], name: str) -> str:
    value = next(rest, None)
    if value is None:
        raise FlagError(f"flag '{name}' is missing its argument")
    return value
