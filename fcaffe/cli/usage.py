"""Command: a click command that reads gflags' spellings, and whose help has an example and flags in groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from fcaffe import log
from fcaffe.cli import glog
from fcaffe.cli.gflags import asks_for_help, spell

# The groups of flags, in the order in which help shows them. A command's own groups come after Caffe's.
HEADINGS = CAFFE, OWN, WORKERS, ENGINE, LOG, COMMON = [
    "Caffe's flags",
    "Flags",
    "Several workers",
    "Engine",
    "Log",
    "Any command",
]


class Command(click.Command):
    """A click command whose help ends with an example, and lists its flags in groups.

    An option's group in help is its `heading`, which `with_options` sets; options without one belong to OWN.
    `file_flag` is the flag that an error proposes for a file name without a flag.
    """

    def __init__(self, *args: Any, example: str = "", file_flag: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example
        self.file_flag = file_flag
        for param in self.params:  # so that the shell completes files
            named = isinstance(param, click.Argument) or re.search("FILE|FOLDER", param.metavar or "")
            if named and param.type is click.STRING and param._custom_shell_complete is None:
                param.type = click.Path()

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse `args`, in gflags' spellings. The root context's `obj` gets the command's name and click's words."""
        if context.resilient_parsing:  # a line that the shell completes
            return super().parse_args(context, args)
        if asks_for_help(args):
            return super().parse_args(context, ["--help"])
        words = spell(args, self.params)
        context.find_root().obj = [self.name, *words]
        context.allow_extra_args = True
        program = context.command_path.split()[0]
        try:
            rest = super().parse_args(context, words)
        except click.MissingParameter as problem:
            assert problem.param is not None
            missing = problem.param.metavar or str(problem.param.name).upper()
            raise click.UsageError(f"{self.name} needs {missing}, such as: {program} {self.example}") from None
        if rest:
            flag = f"; did you mean {self.file_flag} {rest[0]}?" if self.file_flag else ""
            raise click.UsageError(
                f"{self.name} cannot use '{rest[0]}'{flag} ({program} help {self.name} shows its flags)"
            )
        return rest

    def invoke(self, context: click.Context) -> Any:
        """Set up the log, warn of flags without effect, and call the function with a dataclass for each group."""
        values = dict(context.params)
        glog.begin({name: values.pop(name) for name in glog.FLAGS if name in values})
        for param in self.params:
            given = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
            if given and getattr(param, "without_effect", False):
                log.warning(f"--{param.name} has no effect on {self.name}")
        for argument, kind in {group for param in self.params if (group := getattr(param, "group", None))}:
            values[argument] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        assert self.callback is not None
        return context.invoke(self.callback, **values)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        given = dict.fromkeys(getattr(param, "heading", OWN) for param in self.params)
        at = HEADINGS.index(OWN) + 1
        for heading in (*HEADINGS[:at], *(own for own in given if own not in HEADINGS), *HEADINGS[at:]):
            shown = [param for param in self.params if getattr(param, "heading", OWN) == heading]
            records = [record for param in shown if (record := param.get_help_record(context))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            program = context.command_path.split()[0]
            with formatter.section("Example"):
                formatter.write_text(f"{program} {self.example}")


def required(words: Sequence[str], least: int, most: int | None = None) -> Sequence[str]:
    """Return `words` if there are `least` to `most` of them (exactly `least` without `most`).

    Otherwise print the command's help and exit with 1, as Caffe's tools do.
    """
    if least <= len(words) <= (most or least):
        return words
    context = click.get_current_context()
    click.echo(context.get_help())
    context.exit(1)
