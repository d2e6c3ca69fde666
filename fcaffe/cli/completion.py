"""`fcaffe completion SHELL`, and what the script that it prints asks for each time the tab key is pressed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import click
from click.shell_completion import get_completion_class, shell_complete

from fcaffe.cli.flags import common_flags
from fcaffe.cli.usage import Command, one_of, required
from fcaffe.errors import UsageError

PROGRAMS = ("fcaffe", "caffe")
SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    cls=Command,
    example="completion bash >> ~/.bashrc   (zsh: ~/.zshrc; fish: ~/.config/fish/config.fish)",
    help="Print what makes the shell (bash, zsh or fish) complete fcaffe's and caffe's commands, flags and files.",
)
@click.argument("words", nargs=-1, metavar="SHELL", shell_complete=one_of(SHELLS))
@common_flags
def completion(words: tuple[str, ...]) -> int:
    (shell,) = required(words, 1)
    if shell not in SHELLS:
        raise UsageError(f"completion knows {', '.join(SHELLS)}, not '{shell}'")
    kind = get_completion_class(shell)
    assert kind is not None
    for program in PROGRAMS:
        script = kind(click.Command(program), {}, program, _variable(program))
        print(script.source_template % script.source_vars())
    return 0


def answer(program: str, load: Callable[[str], click.Command], short_help: Mapping[str, str]) -> int:
    """Print how the line that the shell asks about may go on; `load` returns the command of a name."""

    class Commands(click.Group):
        def list_commands(self, context: click.Context) -> list[str]:
            return list(short_help)

        def get_command(self, context: click.Context, name: str) -> click.Command | None:
            return _completed(name, load(name), short_help[name]) if name in short_help else None

    question = os.environ[_variable(program)]
    return shell_complete(Commands(program), {}, program, _variable(program), question)


def _variable(program: str) -> str:
    return f"_{program.upper()}_COMPLETE"


def _completed(name: str, command: click.Command, short_help: str) -> click.Command:
    """A command whose flags and words that name files are completed as such."""
    return click.Command(name, params=[_with_files(param) for param in command.params], short_help=short_help)


def _with_files(param: click.Parameter) -> click.Parameter:
    if isinstance(param, click.Argument):
        asked = param._custom_shell_complete is not None or isinstance(param.type, click.Choice)
        return param if asked else click.Argument([str(param.name)], nargs=-1, type=click.Path())
    assert isinstance(param, click.Option)
    if any(word in (param.metavar or "") for word in ("FILE", "FOLDER")):
        return click.Option(param.opts, type=click.Path(), help=param.help)
    return param
