"""`fcaffe run`: a Python script that was written for Caffe. A run with a script never comes here, see `__main__`."""

from __future__ import annotations

import click

from fcaffe.cli.flags import common_flags
from fcaffe.cli.usage import Command
from fcaffe.errors import UsageError


@click.command(
    "run",
    cls=Command,
    example="run classify_cats.py cat.jpg",
    help="Run the Python file SCRIPT with its ARGUMENTS, as `python SCRIPT ARGUMENTS` does; `import caffe` means "
    "fcaffe in it, also where another Caffe is installed or the script looks for one in a folder of its own.",
)
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENTS]")
@common_flags
def run(words: tuple[str, ...]) -> int:
    raise UsageError("run needs a script, and that comes first: fcaffe run SCRIPT [ARGUMENTS]")
