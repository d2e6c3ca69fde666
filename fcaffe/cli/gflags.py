"""Caffe's spellings of flags, brought to the one that click reads.

As gflags has it: one dash or two, the value after a space or `=`, anywhere on the line, before the verb as well;
`_` and `-` in a name are the same; a boolean is `--flag`, `--flag=true` or `--noflag`; `--` ends the flags.
Four flags of its own bring others or let them pass: `--flagfile`, `--fromenv`, `--tryfromenv`, `--undefok`.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence

import click

from fcaffe.cli import glog
from fcaffe.errors import FcaffeError
from fcaffe.input_files import read_input, reading
from fcaffe.suggestions import did_you_mean

FLAG_FILE = "flagfile"  # files of flags, one a line
FROM_ENVIRONMENT = ("fromenv", "tryfromenv")  # names of flags whose values are in FLAGS_<name>
UNDEFINED_OK = "undefok"  # names of flags that nobody need know
LARGEST = 1 << 20  # bytes of a file of flags

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
    """(flags as `--name=value` or, for true booleans, `--name`; all other words). `options` is by `flag_name`.

    Raises FlagError.
    """
    reader = _Reader(options)
    reader.read(words)
    unknown = [name for name in reader.unknown if not reader.may_be_unknown(name)]
    if unknown:
        raise FlagError("\n".join(f"unknown command line flag '{name}'{_hint(name, options)}" for name in unknown))
    return reader.flags, reader.others


class _Reader:
    """The flags and other words read so far."""

    def __init__(self, options: Mapping[str, click.Option]) -> None:
        self.flags: list[str] = []
        self.others: list[str] = []
        self.unknown: list[str] = []
        self._options = options
        self._allowed: set[str] = set()  # by --undefok
        self._open_files: list[str] = []  # that are being read, outermost first

    def read(self, words: Sequence[str]) -> None:
        rest = iter(words)
        for word in rest:
            if word == "--":
                self.others.extend(rest)
            elif word == "-" or not word.startswith("-"):
                self.others.append(word)
            else:
                self._read_flag(word, rest)

    def may_be_unknown(self, name: str) -> bool:
        name = flag_name(name)
        return name in self._allowed or name.removeprefix("no") in self._allowed

    def _read_flag(self, word: str, rest: Iterator[str]) -> None:
        given, equals, value = word.partition("=")
        name = flag_name(given)
        negated = name not in self._options and name.startswith("no") and _is_boolean(self._options.get(name[2:]))
        option = self._options.get(name[2:] if negated else name)
        if name in (FLAG_FILE, *FROM_ENVIRONMENT, UNDEFINED_OK):
            self._read_special(name, value if equals else _next(rest, name))
        elif option is None:
            self.unknown.append(given.removeprefix("-").removeprefix("-"))
        elif _is_boolean(option):
            if _boolean(name, value if equals else "true") is not negated:
                self.flags.append(option.opts[0])
        elif isinstance(option.flag_value, str) and not equals:  # a flag that may have a value
            following = next(rest, None)
            if following is None or following.startswith("-"):
                self.flags.append(f"{option.opts[0]}={option.flag_value}")
                self.read([following, *rest] if following else [])
            else:
                self.flags.append(f"{option.opts[0]}={following}")
        else:
            self.flags.append(f"{option.opts[0]}={value if equals else _next(rest, name)}")

    def _read_special(self, name: str, value: str) -> None:
        parts = [part for part in value.split(",") if part]
        if name == UNDEFINED_OK:
            self._allowed.update(map(flag_name, parts))
        elif name == FLAG_FILE:
            for path in parts:
                self._read_file(path)
        else:
            for part in parts:
                self._read_variable(name, part)

    def _read_file(self, path: str) -> None:
        """Each line is a flag, blank or a comment (#). One of patterns says to which programs those after it apply."""
        if os.path.realpath(path) in self._open_files:
            raise FlagError(f"flag file {path} reads itself; take --{FLAG_FILE}={path} out of it")
        with reading(path, FcaffeError, "file of flags"):
            text = read_input(path, LARGEST).decode(errors="surrogateescape")
        self._open_files.append(os.path.realpath(path))
        applies = True
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            if not line or line.startswith("#"):
                continue
            if not line.startswith("-"):
                applies = any(fnmatch.fnmatch(glog.program(), pattern) for pattern in line.split())
            elif applies:
                try:
                    self._read_flag(line, iter(()))
                except FlagError as error:
                    raise FlagError(f"{error} ({path}:{number})") from None
        self._open_files.pop()

    def _read_variable(self, how: str, flag: str) -> None:
        """The flag's value, from the environment."""
        if flag in FROM_ENVIRONMENT:
            raise FlagError(f"--{how}={flag} would look into the environment for ever; name other flags")
        variable = f"FLAGS_{flag}"
        value = os.environ.get(variable)
        if value is not None:
            self._read_flag(f"--{flag}={value}", iter(()))
        elif how == FROM_ENVIRONMENT[0]:
            raise FlagError(f"{variable} not found in environment; set it, or give --{FROM_ENVIRONMENT[1]}={flag}")


def _hint(name: str, options: Mapping[str, click.Option]) -> str:
    if flag_name(name).removeprefix("no") in options:  # a flag that takes a value has no negation
        return ""
    return did_you_mean(flag_name(name), (flag for flag, option in options.items() if not option.hidden), "--")


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
