"""`fcaffe lmdb`: shows, merges, shuffles and exports LMDB and LevelDB databases."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import click

from fcaffe import log
from fcaffe.cli.flags import common_flags
from fcaffe.cli.progress import counted
from fcaffe.cli.table import bar
from fcaffe.cli.usage import Command
from fcaffe.data import open_database, parse_datum
from fcaffe.data.backends import new_database
from fcaffe.data.database import Database, Record
from fcaffe.errors import UsageError
from fcaffe.tools.records import Contents, export, form_of, merged, shape_of, shuffled

MOST_LABELS = 40  # in the histogram
PATHS = {  # of each action: the least and the largest number of paths, and what they name
    "info": (1, 1, "a database"),
    "cat": (1, 1, "a database"),
    "merge": (2, 1000, "databases and the name of a new one"),
    "shuffle": (2, 2, "a database and the name of a new one"),
    "export": (2, 2, "a database and the name of a new folder"),
}


@click.command(
    "lmdb",
    cls=Command,
    example="lmdb shuffle train_lmdb shuffled_lmdb --seed 3",
    help="Work on LMDB or LevelDB folders, which stay as they are. info DB: counts, shapes, encodings, histogram of "
    "labels. cat DB: a line for each record. merge DB... OUT: all records one after the other. shuffle DB OUT: in "
    "another order. export DB FOLDER: the pictures as files, with a list for convert_imageset. Keys of new databases "
    "are numbered anew; what exists is not overwritten.",
)
@click.argument("action", metavar="ACTION", type=click.Choice(list(PATHS)))
@click.argument("paths", nargs=-1, metavar="DB...")
@click.option("--count", default=0, metavar="N", help="Only the first N records (cat, export; all).")
@click.option("--seed", default=1, metavar="N", help="Which order (shuffle; 1).")
@click.option("--backend", default="", metavar="KIND", help="Kind of OUT: lmdb or leveldb (that of the first DB).")
@common_flags
def lmdb(action: str, paths: tuple[str, ...], count: int, seed: int, backend: str) -> int:
    least, most, what = PATHS[action]
    if not least <= len(paths) <= most:
        raise UsageError(f"lmdb {action} takes {what}, not {len(paths)} names")
    sources = paths if most == 1 else paths[:-1]
    with log.quiet(), contextlib.ExitStack() as opened:
        databases = [opened.enter_context(contextlib.closing(open_database(path))) for path in sources]
        if action == "info":
            _info(databases[0])
        elif action == "cat":
            _cat(_first(databases[0], count))
        elif action == "export":
            total = min(count or databases[0].entries, databases[0].entries)
            number = export(counted(_first(databases[0], count), total, "records"), paths[1])
            print(f"{paths[1]}: {number} pictures")
        else:
            made = shuffled(databases[0], seed) if action == "shuffle" else merged(databases)
            _write(made, databases, paths[-1], backend)
    return 0


def _write(records: Iterator[Record], sources: Sequence[Database], path: str, backend: str) -> None:
    total = sum(database.entries for database in sources)
    with new_database(path, backend or sources[0].kind.lower()) as writer:
        for record in counted(records, total, "records"):
            writer.put(*record)
    print(f"{path}: {writer.count} records")


def _first(database: Database, count: int) -> Iterator[Record]:
    return itertools.islice(database, count) if count > 0 else iter(database)


def _cat(records: Iterator[Record]) -> None:
    for key, value in records:
        datum = parse_datum(key, value)
        label = datum.label if datum.HasField("label") else "-"
        print(f"{key.decode(errors='backslashreplace')}  {label}  {_shape(shape_of(datum))}  {form_of(datum)}")


def _info(database: Database) -> None:
    contents = Contents()
    for record in counted(database, database.entries, "records"):
        contents.add(record)
    print(f"{database.kind} {database.source}")
    print(f"Records    {contents.records:,}")
    print(f"Bytes      {contents.value_bytes:,}")
    print(f"Shapes     {_counts(contents.shapes.most_common(), contents.records, _shape)}")
    print(f"Stored as  {_counts(contents.forms.most_common(), contents.records, str)}")
    if not contents.labels:
        print("Labels     none")
        return
    labels = sorted(contents.labels.items())
    few, many = min(contents.labels.values()), max(contents.labels.values())
    print(f"Labels     {len(labels):,} from {labels[0][0]} to {labels[-1][0]}, each of {few:,} to {many:,} records")
    print()
    for label, records in labels[:MOST_LABELS]:
        print(f"{label:>8}  {records:>9,}  {bar(records / many)}")
    if len(labels) > MOST_LABELS:
        print(f"     ...  {len(labels) - MOST_LABELS:,} more")


def _counts(found: Sequence[tuple[object, int]], total: int, text: Callable[..., str]) -> str:
    """The most frequent items, with counts if there are several."""
    said = [text(what) + (f" ({count:,})" if count < total else "") for what, count in found[:5]]
    return ", ".join(said) + (f" and {len(found) - 5:,} others" if len(found) > 5 else "")


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "unknown"
