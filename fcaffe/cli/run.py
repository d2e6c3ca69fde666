"""`fcaffe run`: help and errors of the command; `fcaffe.__main__` runs the script."""

from __future__ import annotations

import click

from fcaffe.cli.flags import command
from fcaffe.errors import UsageError


@command(
    example="run classify_cats.py cat.jpg",
    help="Run the Python file SCRIPT, or the module of -m, with its ARGUMENTS, as `python SCRIPT ARGUMENTS` does. "
    "`import caffe` means fcaffe in it, also where another Caffe is installed or the script looks for one in a folder "
    "of its own. The script's name follows the flags.",
)
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENTS]")
@click.option(
    "--gpu-optional",
    is_flag=True,
    help="Without a GPU let caffe.set_device and set_mode_gpu warn, and compute on the CPU (as FCAFFE_GPU=optional).",
)
@click.option("-m", "module", metavar="MODULE", help="Run this module, as `python -m` does.")
def run(words: tuple[str, ...], gpu_optional: bool, module: str | None) -> int:
    raise UsageError("run needs a script first: fcaffe run [--gpu-optional] SCRIPT|-m MODULE [ARGUMENTS]")
