"""What a database of pictures holds, its records in another order, and its pictures as files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe.data.database import Database, Record, new_folder
from fcaffe.data.datum import datum_to_array, name_of, parse_datum
from fcaffe.data.images import encode_image
from fcaffe.errors import DataError

LIST = "list.txt"  # of exported pictures, in the form that convert_imageset reads
_NUMBER = re.compile(rb"\d{6,}(_|$)")  # at the beginning of a key, as Caffe's programs make it
_PICTURE_ENDING = re.compile(r"\.(png|jpe?g|bmp|gif|tiff?|webp|p[gpn]m)$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.+-]+")
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by color type
_NO_FRAMES = {0xC4, 0xC8, 0xCC}  # markers of JPEG among those of frames


@dataclass
class Contents:
    """How many records of which shapes, labels and ways of storing there are."""

    records: int = 0
    value_bytes: int = 0
    shapes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    labels: Counter[int] = field(default_factory=Counter)

    def add(self, record: Record) -> None:
        datum = parse_datum(*record)
        self.records += 1
        self.value_bytes += len(record[1])
        self.shapes[shape_of(datum)] += 1
        self.forms[form_of(datum)] += 1
        if datum.HasField("label"):
            self.labels[datum.label] += 1


def form_of(datum: Any) -> str:
    """How the values are stored."""
    if datum.encoded:
        return _FORMS.get(_ending(datum.data), "encoded")
    return "uint8" if datum.data else "float32"


def shape_of(datum: Any) -> tuple[int, ...]:
    """Channels, height and width; of a picture file they stand in its first bytes. () if that is of an unknown kind."""
    if not datum.encoded:
        return datum.channels, datum.height, datum.width
    kind = _ending(datum.data)
    if kind == "png" and len(datum.data) > 25:
        width, height = (int.from_bytes(datum.data[start : start + 4], "big") for start in (16, 20))
        return _PNG_CHANNELS.get(datum.data[25], 0), height, width
    return _jpeg_shape(datum.data) if kind == "jpg" else ()


def renumbered(index: int, key: bytes) -> bytes:
    """A key that comes at this index in the order of a database: the number in front is another one."""
    name = _NUMBER.sub(b"", key, count=1)
    return b"%08d" % index + (b"_" + name if name else b"")


def shuffled(database: Database, seed: int) -> Iterator[Record]:
    """All records, with keys that bring them into an order that the seed decides."""
    order = np.random.default_rng(seed).permutation(database.entries).tolist()
    for index, (key, value) in zip(order, database, strict=True):
        yield renumbered(index, key), value


def merged(databases: Iterable[Database]) -> Iterator[Record]:
    """All records of one database after the other, with keys that keep this order."""
    index = 0
    for database in databases:
        for key, value in database:
            yield renumbered(index, key), value
            index += 1


def export(records: Iterable[Record], folder: str) -> int:
    """Write each record as a picture into the new folder, with a list of names and labels; returns their number.

    Picture files are written as they are stored, pixels as PNG. The folder appears whole or not at all; one that
    exists is refused. Raises DataError.
    """
    lines = []
    with new_folder(folder, "folder of pictures") as temporary:
        for key, value in records:
            datum = parse_datum(key, value)
            content, ending = _picture(key, datum)
            stem = _UNSAFE.sub("_", key.decode(errors="backslashreplace"))
            name = f"{_PICTURE_ENDING.sub('', stem)}.{ending}"
            with open(os.path.join(temporary, name), "xb") as file:
                file.write(content)
            lines.append(f"{name} {datum.label}\n")
        with open(os.path.join(temporary, LIST), "w", encoding="utf-8") as file:
            file.writelines(lines)
    return len(lines)


def _picture(key: bytes, datum: Any) -> tuple[bytes, str]:
    """A picture file and the ending of its name."""
    if datum.encoded:
        return datum.data, _ending(datum.data) or "bin"
    pixels = datum_to_array(datum, key)
    if pixels.dtype != np.uint8 or pixels.shape[0] not in (1, 3, 4):
        raise DataError(
            f"record {name_of(key)} holds {pixels.shape[0]} channels of {pixels.dtype}; a picture has 1, 3 or 4 of "
            "uint8, so this database cannot be exported"
        )
    return encode_image(pixels, "png"), "png"


_STARTS = {b"\x89PNG": "png", b"\xff\xd8": "jpg", b"BM": "bmp", b"GIF8": "gif", b"II*\0": "tif", b"MM\0*": "tif"}
_FORMS = {
    ending: f"{word} files" for ending, word in (("png", "PNG"), ("jpg", "JPEG"), ("bmp", "BMP"), ("tif", "TIFF"))
}


def _ending(data: bytes) -> str:
    return next((ending for start, ending in _STARTS.items() if data.startswith(start)), "")


def _jpeg_shape(data: bytes) -> tuple[int, ...]:
    """Of the first frame (markers C0 to CF); segments before it are passed over by their lengths."""
    offset = 2
    while offset + 10 <= len(data) and data[offset] == 0xFF:
        marker, length = data[offset + 1], int.from_bytes(data[offset + 2 : offset + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            height, width = (int.from_bytes(data[offset + start : offset + start + 2], "big") for start in (5, 7))
            return data[offset + 9], height, width
        offset += 1 if marker == 0xFF else 2 + length
    return ()
