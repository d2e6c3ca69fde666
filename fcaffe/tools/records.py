"""Statistics, shuffling, merging and export of databases of pictures."""

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

LIST = "list.txt"  # of exported pictures, for convert_imageset
_NUMBER = re.compile(rb"\d{6,}(_|$)")  # at the beginning of a key of Caffe's programs
_PICTURE_ENDING = re.compile(r"\.(png|jpe?g|bmp|gif|tiff?|webp|p[gpn]m)$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.+-]+")
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by color type
_NO_FRAMES = {0xC4, 0xC8, 0xCC}  # markers of JPEG among those of frames


@dataclass
class Contents:
    """Counts of records by shape, label and form."""

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
    """The form of the stored values, such as "uint8" or "JPEG files"."""
    if datum.encoded:
        return _FORMS.get(_ending(datum.data), "encoded")
    return "uint8" if datum.data else "float32"


def shape_of(datum: Any) -> tuple[int, ...]:
    """Channels, height and width, which for a PNG or JPEG are read from its header. () for other picture files."""
    if not datum.encoded:
        return datum.channels, datum.height, datum.width
    kind = _ending(datum.data)
    if kind == "png" and len(datum.data) > 25:
        width, height = (int.from_bytes(datum.data[start : start + 4], "big") for start in (16, 20))
        return _PNG_CHANNELS.get(datum.data[25], 0), height, width
    return _jpeg_shape(datum.data) if kind == "jpg" else ()


def renumbered(index: int, key: bytes) -> bytes:
    """A key with this index as its leading number."""
    name = _NUMBER.sub(b"", key, count=1)
    return b"%08d" % index + (b"_" + name if name else b"")


def shuffled(database: Database, seed: int) -> Iterator[Record]:
    """Yields all records, with keys whose order is a permutation by the seed."""
    order = np.random.default_rng(seed).permutation(database.entries).tolist()
    for index, (key, value) in zip(order, database, strict=True):
        yield renumbered(index, key), value


def merged(databases: Iterable[Database]) -> Iterator[Record]:
    """Yields the records of all databases, with keys that preserve this order."""
    index = 0
    for database in databases:
        for key, value in database:
            yield renumbered(index, key), value
            index += 1


def export(records: Iterable[Record], folder: str) -> int:
    """Write the pictures of records into a new folder, with a list of names and labels. Returns their number.

    Encoded pictures are not re-encoded; raw pixels become PNG files. Raises DataError if the folder exists.
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


_STARTS = {b"\x89PNG": "png", b"\xff\xd8": "jpg", b"BM": "bmp", b"GIF8": "gif", b"II*\0": "tif", b"MM\0*": "tif"}
_FORMS = {
    ending: f"{word} files" for ending, word in (("png", "PNG"), ("jpg", "JPEG"), ("bmp", "BMP"), ("tif", "TIFF"))
}


def _ending(data: bytes) -> str:
    return next((ending for start, ending in _STARTS.items() if data.startswith(start)), "")


def _jpeg_shape(data: bytes) -> tuple[int, ...]:
    """The shape of a JPEG's first frame (markers C0 to CF)."""
    offset = 2
    while offset + 10 <= len(data) and data[offset] == 0xFF:
        marker, length = data[offset + 1], int.from_bytes(data[offset + 2 : offset + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            height, width = (int.from_bytes(data[offset + start : offset + start + 2], "big") for start in (5, 7))
            return data[offset + 9], height, width
        offset += 1 if marker == 0xFF else 2 + length
    return ()
