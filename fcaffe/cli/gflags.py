"""Rewrites gflags' spellings of flags into click's.

gflags takes one dash or two, `-` or `_` in names, `--flag value` or `--flag=value`, and `--flag`, `--flag=true` or
`--noflag` for booleans. `inline` runs before any command is loaded, `spell` when the command's options are known.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence

import click

from fcaffe.errors import FcaffeError
from fcaffe.input_files import read_input, reading
from fcaffe.suggestions import did_you_mean

LARGEST = 1 << 20  # bytes of a flag file


def flag_name(word: str) -> str:
    """`--on-nan=stop`, `-on_nan` -> `on_nan`; an empty string for a word that is no flag."""
    name = word.partition("=")[0]
    return name.removeprefix("-").removeprefix("-").replace("-", "_") if name.startswith("-") else ""


def asks_for_help(words: Iterable[str]) -> bool:
    """Whether a flag among `words` is -h, --help or one of gflags' others, such as --helpshort."""
    return any(name == "h" or name.startswith("help") for name in map(flag_name, words))


def inline(words: Iterable[str]) -> Iterator[str]:
    """Yield `words`, with --flagfile, --fromenv and --tryfromenv replaced by the flags that they stand for.

    Raises click.UsageError and FcaffeError.
    """
    rest = iter(words)
    for word in rest:
        name = flag_name(word)
        if word == "--":
            yield word
            yield from rest
        elif name == "flagfile":
            for path in filter(None, _value(word, rest).split(",")):
                with reading(path, FcaffeError, "flag file"):
                    text = read_input(path, LARGEST).decode(errors="surrogateescape")
                lines = map(str.strip, text.splitlines())
                yield from inline(line for line in lines if line.startswith("-"))
        elif name in ("fromenv", "tryfromenv"):
            for flag in filter(None, _value(word, rest).split(",")):
                variable = f"FLAGS_{flag}"
                if variable in os.environ:
                    yield f"--{flag}={os.environ[variable]}"
                elif name == "fromenv":
                    raise click.UsageError(f"{variable} not found in environment; set it, or give --tryfromenv={flag}")
        else:
            yield word


def value_of(name: str, words: Sequence[str]) -> str | None:
    """Return the value that `words`, of `inline`, give the flag last; None without the flag."""
    value = None
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        if flag_name(word) == name:
            value = word.partition("=")[2] if "=" in word else next(rest, "")
    return value


def spell(words: Iterable[str], params: Iterable[click.Parameter]) -> list[str]:
    """Return `words` as a click command with these parameters reads them: each flag and its value are one word.

    Raises click.UsageError, with a line for each unknown flag that no --undefok allows.
    """
    options = {flag_name(name): param for param in params if isinstance(param, click.Option) for name in param.opts}
    spelled: list[str] = []
    unknown: list[str] = []
    allowed: set[str] = set()
    rest = iter(words)
    for word in rest:
        name = flag_name(word)
        negated = name not in options and name.startswith("no") and _is_boolean(options.get(name[2:]))
        option = options.get(name[2:] if negated else name)
        if word == "--":
            tail = list(rest)
            spelled += [word, *tail] if tail else []
        elif not name:
            spelled.append(word)
        elif name == "undefok":
            allowed.update(flag.replace("-", "_") for flag in _value(word, rest).split(","))
        elif option is None:
            unknown.append(word.partition("=")[0].removeprefix("-").removeprefix("-"))
        elif _is_boolean(option):
            if click.BOOL.convert(word.partition("=")[2] if "=" in word else "true", option, None) is not negated:
                spelled.append(option.opts[0])
        else:
            spelled.append(f"{option.opts[0]}={_value(word, rest, options)}")
    refused = [name for name in unknown if not {key := name.replace("-", "_"), key.removeprefix("no")} & allowed]
    lines = []
    for name, key in ((name, name.replace("-", "_")) for name in refused):
        known = [flag for flag, option in options.items() if not option.hidden]
        negates = key.removeprefix("no") in options  # a flag with a value, which has no negation
        hint = "" if negates else _instead(key) or did_you_mean(key, known, "--")
        lines.append(f"unknown command line flag '{name}'{hint}")
    if lines:
        raise click.UsageError("\n".join(lines))
    return spelled


# Fields of a solver by the names that other programs give them.
_FIELDS = {"lr": "base_lr", "learning_rate": "base_lr", "iterations": "max_iter", "epochs": "max_iter"}
GONE = {
    "grow_batch": "leave it out, and the rate drops as lr_policy says. To let the batch grow, end the training at the "
    "drop, and resume it by --snapshot with a larger iter_size at the same rate",
    "calibrate": "fcaffe time --profile measures this machine; write its file by hand (docs/firecaffe.md)",
    "mpi_args": "fcaffe starts the workers itself; for another MPI start them by its own mpirun, without --workers",
    "trace": "the log ends with each worker's seconds; a profiler such as py-spy shows more",
    "scaling": "train 100 iterations with --workers 1, 2, ..., and compare the seconds at the ends of the logs",
}


def _instead(name: str) -> str:
    """The end of a message about a flag that no longer exists, or is a field of a solver or of a data layer."""
    from fcaffe.proto import caffe_pb2 as pb

    if name in GONE:
        return f" (it no longer exists: {GONE[name]})"
    field = _FIELDS.get(name, name)
    if field in pb.SolverParameter.DESCRIPTOR.fields_by_name:
        return f" (set {field} in the solver's prototxt)"
    if field in pb.DataParameter.DESCRIPTOR.fields_by_name:
        return f" (set {field} in the data layer of the net's prototxt)"
    return ""


def _value(word: str, rest: Iterator[str], flags: Container[str] = ()) -> str:
    """Return what follows the `=` of the flag `word`, or else the next word, which must be none of `flags`."""
    value = word.partition("=")[2] if "=" in word else next(rest, None)
    if value is None or ("=" not in word and flag_name(value) in flags):
        raise click.UsageError(f"flag '{flag_name(word)}' is missing its argument")
    return value


def _is_boolean(option: click.Option | None) -> bool:
    return option is not None and option.is_flag
