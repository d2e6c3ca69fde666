"""`fcaffe lmdb`: shows and exports LMDB and LevelDB databases."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.flags import command
from fcaffe.cli.progress import counted
from fcaffe.cli.table import bar, say
from fcaffe.data import open_database
from fcaffe.data.annotated import parse_annotated
from fcaffe.data.database import Database, Record, new_folder
from fcaffe.data.datum import datum_to_array, labels_of, name_of, parse_datum
from fcaffe.data.form import labels_beside
from fcaffe.data.images import encode_image, header_of
from fcaffe.errors import DataError, UsageError

MOST_LABELS = 40  # in the histogram
ACTIONS = ["info", "cat", "export"]
LONGEST_STEM = 200  # bytes of a file's name
LIST = "list.txt"  # of exported pictures, for convert_imageset
_PICTURE_ENDING = re.compile(r"\.(png|jpe?g|bmp|gif|tiff?|webp|p[gpn]m)$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.+-]+")
_STARTS = {b"\x89PNG": "png", b"\xff\xd8": "jpg", b"BM": "bmp", b"GIF8": "gif", b"II*\0": "tif", b"MM\0*": "tif"}
_FORMS = {"png": "PNG files", "jpg": "JPEG files", "bmp": "BMP files", "tif": "TIFF files"}


@command(
    example="lmdb info train_lmdb",
    help="Read an LMDB or LevelDB folder. info DB: counts, shapes, encodings, histogram of labels. cat DB: a line for "
    "each record. export DB FOLDER: the pictures as files in a new folder, with a list for convert_imageset, which "
    "shuffles and merges lists.",
)
@click.argument("action", metavar="ACTION", type=click.Choice(ACTIONS))
@click.argument("paths", nargs=-1, metavar="DB [FOLDER]")
@click.option("--count", default=0, type=click.IntRange(min=0), metavar="N", help="Only the first N records (all).")
def lmdb(action: str, paths: tuple[str, ...], count: int) -> int:
    exports = action == "export"
    if len(paths) != 1 + exports:
        what = "a database" + " and the name of a new folder" * exports
        raise UsageError(f"lmdb {action} takes {what}, not {len(paths)} names")
    with log.quiet(), contextlib.closing(open_database(paths[0])) as database:
        total = min(count or database.entries, database.entries)
        records: Iterable[Record] = itertools.islice(database, total)
        if action == "cat":
            for key, value in records:
                datum = _datum(key, value)
                label = _labels(datum) if datum.HasField("label") else "-"
                say(f"{key.decode(errors='backslashreplace')}  {label}  {_shape(shape_of(datum))}  {form_of(datum)}")
            return 0
        records = counted(records, total, "records")
        if exports:
            say(f"{paths[1]}: {export(records, paths[1])} pictures")
        else:
            _info(records, database)
    return 0


def _datum(key: bytes, value: bytes) -> Any:
    """The Datum of a record, also that within an AnnotatedDatum."""
    datum = parse_datum(key, value)
    if datum.channels or datum.encoded or datum.data or datum.float_data:
        return datum
    with contextlib.suppress(DataError):
        return parse_annotated(key, value).datum
    return datum


def _labels(datum: Any) -> str:
    return " ".join(str(label).removesuffix(".0") for label in labels_of(datum))


def _info(records: Iterable[Record], database: Database) -> None:
    shapes, forms, counts = Counter[tuple[int, ...]](), Counter[str](), Counter[int]()
    size = 0
    for key, value in records:
        datum = _datum(key, value)
        size += len(value)
        shapes[shape_of(datum)] += 1
        forms[form_of(datum)] += 1
        if datum.HasField("label"):
            counts[datum.label] += 1
    say(f"{database.kind} {database.source}")
    say(f"Records    {shapes.total():,}")
    say(f"Bytes      {size:,}")
    say(f"Shapes     {_counts(shapes, _shape)}")
    say(f"Stored as  {_counts(forms, str)}")
    if not counts:
        say("Labels     none")
        return
    labels = sorted(counts.items())
    few, many = min(counts.values()), max(counts.values())
    say(f"Labels     {len(labels):,} from {labels[0][0]} to {labels[-1][0]}, each of {few:,} to {many:,} records")
    print()
    names = dict(enumerate(labels_beside(database.source)))
    width = max((len(names.get(label, "")) for label, _ in labels[:MOST_LABELS]), default=0)
    for label, number in labels[:MOST_LABELS]:
        name = f"{names.get(label, ''):{width}}  " if names else ""
        say(f"{label:>8}  {name}{number:>9,}  {bar(number / many)}")
    if len(labels) > MOST_LABELS:
        say(f"     ...  {len(labels) - MOST_LABELS:,} more")


def _counts(found: Counter[Any], text: Callable[..., str]) -> str:
    """The most frequent items, with counts if there are several."""
    said = [text(what) + (f" ({count:,})" if len(found) > 1 else "") for what, count in found.most_common(5)]
    return ", ".join(said) + (f" and {len(found) - 5:,} others" if len(found) > 5 else "")


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "unknown"


def form_of(datum: Any) -> str:
    """The form of the stored values, such as "uint8" or "JPEG files"."""
    if datum.encoded:
        return _FORMS.get(_ending(datum.data), "encoded")
    if datum.data:
        return "uint8"
    return "float32" if datum.float_data else "no values"


def shape_of(datum: Any) -> tuple[int, ...]:
    """Channels, height and width, which for a PNG or JPEG are read from its header. () if they are unknown."""
    if not datum.encoded:
        return (datum.channels, datum.height, datum.width) if datum.channels else ()
    header = header_of(datum.data)
    return (header.channels, header.height, header.width) if header.height else ()


def export(records: Iterable[Record], folder: str) -> int:
    """Write the pictures of records into a new folder, with a list of names and labels. Returns their number.

    Encoded pictures are not re-encoded; raw pixels become PNG files. Raises DataError if the folder exists.
    """
    lines: list[str] = []
    taken: set[str] = set()
    with new_folder(folder, "folder of pictures") as temporary:
        for key, value in records:
            datum = _datum(key, value)
            content, ending = _picture(key, datum)
            stem = _PICTURE_ENDING.sub("", _UNSAFE.sub("_", key.decode(errors="backslashreplace")))
            stem, number = stem.encode()[:LONGEST_STEM].decode(errors="ignore"), 1
            while (name := f"{stem}{f'_{number}' if number > 1 else ''}.{ending}") in taken:  # of a.jpg and a.png
                number += 1
            taken.add(name)
            with open(os.path.join(temporary, name), "xb") as file:
                file.write(content)
            lines.append(f"{name} {_labels(datum)}\n" if datum.HasField("label") else f"{name}\n")
        with open(os.path.join(temporary, LIST), "w", encoding="utf-8") as file:
            file.writelines(lines)
    return len(lines)


def _picture(key: bytes, datum: Any) -> tuple[bytes, str]:
    """The picture file of a Datum, and its extension."""
    if datum.encoded:
        return datum.data, _ending(datum.data) or "bin"
    pixels = datum_to_array(datum, key)
    if pixels.dtype != np.uint8 or pixels.shape[0] not in (1, 3, 4):
        raise DataError(
            f"record {name_of(key)} holds {pixels.shape[0]} channels of {pixels.dtype}; a picture has 1, 3 or 4 of "
            "uint8, so this database cannot be exported"
        )
    return encode_image(pixels, "png"), "png"


def _ending(data: bytes) -> str:
    return next((ending for start, ending in _STARTS.items() if data.startswith(start)), "")
