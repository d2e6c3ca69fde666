"""What a command says of its own use: help with an example and flags in groups, and the words that it must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

# What flags are about, in the order in which help shows them; a command's own come after Caffe's.
CAFFE, OWN, WORKERS, ENGINE, LOG, COMMON = (
    "Caffe's flags",
    "Flags",
    "Several workers",
    "What computes",
    "Log",
    "Any command",
)
HEADINGS = [CAFFE, OWN, WORKERS, ENGINE, LOG, COMMON]


class Command(click.Command):
    """A click command whose help ends with an example, and lists its flags in groups, each in the order of use.

    An option's group is its `heading`, which `with_options` gives it; those that only this command has come behind OWN.
    """

    def __init__(self, *args: Any, example: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example

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
    """The words that a command is given, which must be so many; with others its help is shown, and it exits with 1."""
    if least <= len(words) <= (most or least):
        return words
    context = click.get_current_context()
    click.echo(context.get_help())
    context.exit(1)


def one_of(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """How a shell completes the words of a command whose first one is of these names; all others are files."""

    def complete(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
        if context.params.get(str(param.name)):
            return [CompletionItem(begun, type="file")]
        return [CompletionItem(name) for name in names if name.startswith(begun)]

    return complete
