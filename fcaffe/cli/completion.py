"""`fcaffe completion SHELL`, and the answers to the script that it prints, which asks at each press of the tab key."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy

import click
from click.shell_completion import get_completion_class, shell_complete

from fcaffe.cli.commands import COMMANDS
from fcaffe.cli.flags import command

PROGRAMS = ("fcaffe", "caffe")
SHELLS = ("bash", "zsh", "fish")


@command(
    example="completion bash >> ~/.bashrc   (zsh: ~/.zshrc; fish: ~/.config/fish/config.fish)",
    help="Print a script that lets bash, zsh or fish complete fcaffe's and caffe's commands, flags and files.",
)
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    kind = get_completion_class(shell)
    assert kind is not None
    for program in PROGRAMS:
        script = kind(click.Command(program), {}, program, _variable(program))
        print(script.source_template % script.source_vars())
    return 0


def answer(program: str, load: Callable[[str], click.Command]) -> int:
    """Print how the line that the shell asks about may go on; `load` returns the command of a name."""

    class Commands(click.Group):
        def list_commands(self, context: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, context: click.Context, name: str) -> click.Command | None:
            if name not in COMMANDS:
                return None
            command = copy(load(name))
            command.short_help = COMMANDS[name]
            return command

    question = os.environ[_variable(program)]
    return shell_complete(Commands(program), {}, program, _variable(program), question)


def _variable(program: str) -> str:
    return f"_{program.upper()}_COMPLETE"
