"""`fcaffe parse_log` and `fcaffe extract_seconds`: write tables of logs, as Caffe's tools/extra does."""

from __future__ import annotations

import click

from fcaffe.cli.flags import common_flags
from fcaffe.cli.usage import Command, required
from fcaffe.errors import UsageError
from fcaffe.output_files import replacing
from fcaffe.tools.log_tables import iteration_seconds, read_messages, table_paths, tables, write_table


@click.command(
    "parse_log",
    cls=Command,
    example="parse_log train.log .",
    help="Write the outputs in LOG, of a training, to the CSV files LOG.train and LOG.test in OUTPUT_DIR. Columns are "
    "iteration, seconds, learning rate and each output.",
)
@click.argument("words", nargs=-1, metavar="LOG OUTPUT_DIR")
@click.option("--delimiter", default=",", metavar="C", help="Delimiter of the columns (,).")
@click.option("--verbose", is_flag=True, help="Print the names of the written files.")
@common_flags
def parse_log(words: tuple[str, ...], delimiter: str, verbose: bool) -> int:
    path, folder = required(words, 2)
    if len(delimiter) != 1:
        raise UsageError(f"--delimiter takes one character, not '{delimiter}'")
    paths = table_paths(path, folder)
    for phase, rows in tables(read_messages(path)).items():
        if rows:
            write_table(paths[phase], rows, delimiter)
        if verbose:
            print(f"Wrote {paths[phase]}" if rows else f"Not writing {paths[phase]}; no lines to write")
    return 0


@click.command(
    "extract_seconds",
    cls=Command,
    example="extract_seconds train.log seconds.txt",
    help="Write the time of each line of LOG that names an iteration, in seconds since the training began.",
)
@click.argument("words", nargs=-1, metavar="LOG OUTPUT_FILE")
@common_flags
def extract_seconds(words: tuple[str, ...]) -> int:
    path, target = required(words, 2)
    seconds = iteration_seconds(read_messages(path))
    with replacing(target, "list of seconds") as temporary:
        temporary.write_text("".join(f"{second:f}\n" for second in seconds))
    return 0
