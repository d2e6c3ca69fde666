"""Converts lists of pictures to records, as Caffe's convert_imageset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fcaffe import log
from fcaffe.data.database import Record
from fcaffe.data.datum import array_to_datum
from fcaffe.data.decoding import decoding_threads
from fcaffe.data.image_list import ListedImage
from fcaffe.data.images import Color, decode_image, encode_image, opencv, read_file, resize_image
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb

CHUNK = 256  # pictures decoded at a time, which limits memory
REPORT = 1000  # records between two log lines


@dataclass(frozen=True)
class PictureForm:
    """The form of a stored picture: channels, size (0: unchanged) and encoding.

    `encoded` stores picture files of the type `encode_type`, or if that is empty of the type of the file's name.
    """

    gray: bool = False
    resize_height: int = 0
    resize_width: int = 0
    encoded: bool = False
    encode_type: str = ""

    @property
    def resizes(self) -> bool:
        return self.resize_height > 0 and self.resize_width > 0


def picture_records(
    root: str, images: list[ListedImage], form: PictureForm, check_size: bool = False
) -> Iterator[Record]:
    """Yields keys and Datums of the pictures of a list, whose paths are appended to `root`.

    An unreadable picture is logged and skipped, and its number is not used, as in Caffe. With `check_size`, raises
    DataError for a picture of another size than the first.
    """
    opencv()  # raises if it is missing
    first: tuple[int, ...] = ()
    count = 0
    numbered = enumerate(images)
    with ThreadPoolExecutor(decoding_threads()) as pool:  # OpenCV releases the interpreter's lock
        while chunk := list(itertools.islice(numbered, CHUNK)):
            made = pool.map(lambda image: _datum(root, image, form), (image for _, image in chunk))
            for (index, image), (value, shape) in zip(chunk, made, strict=True):
                if not value:
                    continue
                first = first or shape
                if check_size and shape != first:
                    sizes = " x ".join(map(str, shape)), " x ".join(map(str, first))
                    raise DataError(
                        f'"{root}{image.path}" is {sizes[0]} (channels x height x width), the pictures before it are '
                        f"{sizes[1]}: give --resize_height and --resize_width, or leave --check_size out"
                    )
                yield f"{index:08d}_{image.path}".encode(errors="surrogateescape"), value
                count += 1
                if count % REPORT == 0:
                    log.converted(count)
    if count == 0:
        raise DataError(
            f'none of the {len(images)} pictures could be read: "{root}{images[0].path}" is where the first one was '
            "looked for; give the folder with a / at its end"
        )
    if count % REPORT:
        log.all_converted(count)


def _datum(root: str, image: ListedImage, form: PictureForm) -> tuple[bytes, tuple[int, ...]]:
    """The serialised Datum of a picture, and the shape of its pixels; both empty if it cannot be read."""
    path = root + image.path
    try:
        content = read_file(path)
        pixels = decode_image(content, f'"{path}"', Color.GRAY if form.gray else Color.COLOR)
    except DataError:
        log.unreadable_image(path)
        return b"", ()
    if form.resizes:
        pixels = resize_image(pixels, form.resize_height, form.resize_width)
    if not (form.encoded or form.encode_type):
        datum = array_to_datum(np.ascontiguousarray(pixels), image.label)
        datum.encoded = False
        return datum.SerializeToString(), pixels.shape
    ending = _ending(image.path)
    if not form.encode_type and not ending:
        log.no_encoding(image.path)
    kind = form.encode_type or ending
    is_kind = kind.lower() in (ending, {"jpeg": "jpg"}.get(ending))
    if form.resizes or not is_kind:
        content = encode_image(pixels, kind)
    return pb.Datum(data=content, label=image.label, encoded=True).SerializeToString(), pixels.shape


def _ending(path: str) -> str:
    return path.rpartition(".")[2].lower() if "." in path else ""
