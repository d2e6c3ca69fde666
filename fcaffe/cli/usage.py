"""What a command says of its own use: help with an example and flags in groups, and the words that it must have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

OTHER = "Flags"


class Command(click.Command):
    """A click command whose help ends with an example, and lists its flags in groups, each in the order of use.

    An option's group is its `heading`, which `with_options` gives it.
    """

    def __init__(self, *args: Any, example: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(context) if isinstance(param, click.Option)]
        for heading, group in groupby(options, lambda option: getattr(option, "heading", OTHER)):
            records = [record for option in group if (record := option.get_help_record(context))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            program = context.command_path.split()[0]
            with formatter.section("Example"):
                formatter.write_text(f"{program} {self.example}")


def required(words: Sequence[str], least: int, most: int | None = None) -> Sequence[str]:
    """The words that a command is given, which must be so many; with others its help is shown, and it exits with 1."""
    if least <= len(words) <= (most or least):
        return words
    context = click.get_current_context()
    click.echo(context.get_help())
    context.exit(1)
