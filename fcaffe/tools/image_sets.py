"""Converts lists of pictures: to records, as convert_imageset and SSD's convert_annoset, or to squares of one size."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fcaffe import log
from fcaffe.data.annotated import read_label_map
from fcaffe.data.batches import decoding_threads
from fcaffe.data.database import Record
from fcaffe.data.datum import array_to_datum, set_labels
from fcaffe.data.image_list import ListedImage
from fcaffe.data.images import Color, damage_of, decode_image, encode_image, opencv, read_file, resize_image
from fcaffe.errors import DataError
from fcaffe.input_files import read_input, reading
from fcaffe.output_files import replacing
from fcaffe.proto import caffe_pb2 as pb

AHEAD = 128  # pictures decoded ahead, which limits memory
REPORT = 1000  # records between two log lines
NO_LABEL = -1  # of a picture with an annotation
INT = 2**31

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class PictureForm:
    """The form of a stored picture: channels, size (0: unchanged) and encoding.

    `min_dim` and `max_dim` limit the shorter and the longer side. They retain the aspect ratio and go before the size.
    `encoded` stores picture files of the type `encode_type`, or if that is empty of the type of the file's name.
    """

    gray: bool = False
    resize_height: int = 0
    resize_width: int = 0
    encoded: bool = False
    encode_type: str = ""
    min_dim: int = 0
    max_dim: int = 0

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the stored picture."""
        if self.min_dim > 0 or self.max_dim > 0:
            scale = max(self.min_dim / min(height, width), 1)
            if 0 < self.max_dim < int(scale * max(height, width)):
                scale = self.max_dim / max(height, width)
            return round(scale * height), round(scale * width)
        if self.resize_height > 0 and self.resize_width > 0:
            return self.resize_height, self.resize_width
        return height, width


def pooled(
    work: Callable[[Item], Made], items: Iterable[Item], threads: int = 0, most: int = AHEAD
) -> Iterator[tuple[Item, Made]]:
    """Yields each item and the result of `work` on it, in order. Threads work on up to `most` items ahead.

    `threads` is their number, by default that of `decoding_threads`.
    """
    with ThreadPoolExecutor(threads or decoding_threads()) as pool:  # OpenCV releases the interpreter's lock
        ahead: deque[tuple[Item, Future[Made]]] = deque()
        try:
            for item in items:
                ahead.append((item, pool.submit(work, item)))
                if len(ahead) >= most:
                    first, result = ahead.popleft()
                    yield first, result.result()
            while ahead:
                first, result = ahead.popleft()
                yield first, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def picture_records(
    root: str,
    images: Sequence[ListedImage],
    form: PictureForm,
    check_size: bool = False,
    record: Callable[[Any, Any, int, int], Any] = lambda datum, *_: datum,
) -> Iterator[Record]:
    """Yields keys and Datums of the pictures of a list, whose paths are appended to `root`.

    `record` may return another message for (Datum, item of the list, height and width of the picture file).

    An unreadable picture is logged and skipped, and its number is not used, as in Caffe. With `check_size`, raises
    DataError for a picture of another size than the first.
    """
    opencv()  # raises if it is missing
    first: tuple[int, ...] = ()
    count = 0
    made = pooled(lambda image: _value(root, image, form, record), images)
    for index, (image, (value, shape)) in enumerate(made):
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
            f'none of the {len(images)} pictures could be read, such as "{root}{images[0].path}": give the folder with '
            "a / at its end, and on each line of the list a path, a blank and a label"
        )
    if count % REPORT:
        log.all_converted(count)
    if count < len(images):
        log.warning(f"{len(images) - count} of {len(images)} pictures skipped; the lines above name them")


def _value(
    root: str, image: ListedImage, form: PictureForm, record: Callable[[Any, Any, int, int], Any]
) -> tuple[bytes, tuple[int, ...]]:
    """The serialised record of a picture, and the shape of its pixels; both empty if it cannot be read."""
    path = root + image.path
    try:
        content = read_file(path)
        pixels = decode_image(content, f'"{path}"', Color.GRAY if form.gray else Color.COLOR)
    except DataError as problem:
        is_damaged = os.path.isfile(path) and damage_of(read_file(path))
        (log.error(str(problem)) if is_damaged else log.unreadable_image(path))
        return b"", ()
    _, height, width = pixels.shape
    size = form.size(height, width)
    if resizes := size != (height, width):
        pixels = resize_image(pixels, *size)
    datum = _datum(image, content, pixels, resizes, form)
    set_labels(datum, NO_LABEL if isinstance(image.label, str) else image.label)
    return record(datum, image, height, width).SerializeToString(), pixels.shape


def _datum(image: ListedImage, content: bytes, pixels: np.ndarray, resized: bool, form: PictureForm) -> Any:
    if not (form.encoded or form.encode_type):
        datum = array_to_datum(np.ascontiguousarray(pixels))
        datum.encoded = False
        return datum
    ending = _ending(image.path)
    if not form.encode_type and not ending:
        log.no_encoding(image.path)
    kind = form.encode_type or ending
    is_kind = kind.lower() in (ending, {"jpeg": "jpg"}.get(ending))
    if resized or not is_kind:
        content = encode_image(pixels, kind)
    return pb.Datum(data=content, encoded=True)


def _ending(path: str) -> str:
    return path.rpartition(".")[2].lower() if "." in path else ""


def crop_images(names: Sequence[str], source: str, target: str, side: int, threads: int) -> Iterator[bool]:
    """Write each picture of the folder `source` to the same path in `target`, `side` pixels high and wide.

    Yields, in the order of the names, whether each could be read. Unreadable pictures are logged and skipped.
    """
    opencv()  # raises if it is missing
    for _, is_written in pooled(
        lambda name: _crop_file(os.path.join(source, name), os.path.join(target, name), side), names, threads
    ):
        yield is_written


def crop_image(pixels: np.ndarray, side: int) -> np.ndarray:
    """The middle square of pixels (C, H, W) after a resize of the shorter edge to `side`."""
    _, height, width = pixels.shape
    shorter = min(height, width)
    height, width = side * height // shorter, side * width // shorter
    top, left = (height - side) // 2, (width - side) // 2
    return resize_image(pixels, height, width)[:, top : top + side, left : left + side]


def _crop_file(source: str, target: str, side: int) -> bool:
    try:
        pixels = decode_image(read_file(source), f'"{source}"', Color.COLOR)
    except DataError as problem:
        log.warning(str(problem))
        return False
    content = encode_image(crop_image(pixels, side), os.path.splitext(target)[1].lstrip("."))
    with replacing(target, "picture", DataError) as temporary:
        os.makedirs(temporary.parent, exist_ok=True)
        temporary.write_bytes(content)
    return True


# --- annotations ------------------------------------------------------------------------------------------------------


class Annotated(NamedTuple):
    """The objects of a file, with the height and width of the picture that their corners refer to.

    An object is the name or number of its label, a list of xmin, ymin, xmax, ymax in pixels, and whether it is
    difficult.
    """

    height: int
    width: int
    objects: list[tuple[str, list[float], bool]]


def labels_by_name(path: str, check: bool = False) -> dict[str, int]:
    """The labels of a LabelMap file. With `check`, raises DataError for a repeated name."""
    items = read_label_map(path).values()
    labels = {item.name: item.label for item in items}
    if check and len(labels) < len(items):
        raise DataError(f"{path}: a name stands twice; correct it, or leave --check_label out")
    return labels


def annotated_record(
    root: str, read: Callable[[str, int, int], Annotated], labels: Mapping[str, int] | None
) -> Callable[[Any, Any, int, int], Any]:
    """A function from (datum, ListedImage, height, width) to its AnnotatedDatum, for `picture_records`.

    The label of such a ListedImage is the path of an annotation. `labels` are those by name; None where annotations
    have numbers.
    """

    def record(datum: Any, pair: ListedImage, height: int, width: int) -> Any:
        path = root + pair.label
        annotated = pb.AnnotatedDatum(datum=datum, type=pb.AnnotatedDatum.BBOX)
        groups: dict[int, Any] = {}
        found = read(path, height, width)
        if not (0 < found.height < INT and 0 < found.width < INT):
            raise DataError(f"{path}: the picture has the size {found.width} x {found.height}; give its true size")
        for name, corners, difficult in found.objects:
            if labels is not None and name not in labels:
                raise DataError(f'{path}: the label map has no "{name}", only {", ".join(sorted(labels))}')
            label = int(name) if labels is None else labels[name]
            if not -INT <= label < INT:
                raise DataError(f"{path}: the label {name} is no number of 32 bits")
            if label not in groups:
                groups[label] = annotated.annotation_group.add(group_label=label)
            xmin, ymin, xmax, ymax = corners
            if not (0 <= xmin <= xmax <= found.width and 0 <= ymin <= ymax <= found.height):
                log.warning(
                    f"{path}: the box of {name} ({', '.join(f'{corner:g}' for corner in corners)}) exceeds its picture "
                    f"of {found.width} x {found.height} pixels"
                )
            one = groups[label].annotation.add(instance_id=len(groups[label].annotation))
            one.bbox.xmin, one.bbox.xmax = xmin / found.width, xmax / found.width
            one.bbox.ymin, one.bbox.ymax = ymin / found.height, ymax / found.height
            one.bbox.difficult = difficult
        return annotated

    return record


def read_xml(path: str, height: int, width: int) -> Annotated:
    """Read an annotation of PASCAL VOC. Its own size of the picture counts, if it has one. Raises DataError."""
    try:
        root = ElementTree.fromstring(_content(path))
        size = root.find("size")
        if size is not None:
            height, width = int(size.findtext("height", "")), int(size.findtext("width", ""))
        objects = [
            (
                one.findtext("name", ""),
                [float(one.findtext(f"bndbox/{corner}", "")) for corner in ("xmin", "ymin", "xmax", "ymax")],
                one.findtext("difficult", "0").strip() == "1",
            )
            for one in root.iter("object")
        ]
    except (ElementTree.ParseError, ValueError) as problem:
        raise DataError(f"{path} is not an annotation of PASCAL VOC: {problem}") from problem
    return Annotated(height, width, objects)


def read_json(path: str, *_: int) -> Annotated:
    """Read an annotation of one picture in the form of COCO. Raises DataError."""
    try:
        content = json.loads(_content(path))
        objects = []
        for one in content["annotation"]:
            x, y, w, h = map(float, one["bbox"])
            objects.append((str(one["category_id"]), [x, y, x + w, y + h], bool(one["iscrowd"])))
        return Annotated(int(content["image"]["height"]), int(content["image"]["width"]), objects)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        raise DataError(f"{path} is not an annotation in COCO's form for SSD: {problem!r}") from problem


def read_txt(path: str, height: int, width: int) -> Annotated:
    """Read lines of a label's number, xmin, ymin, xmax and ymax in pixels. Raises DataError."""
    objects = []
    for number, line in enumerate(_content(path).decode(errors="replace").splitlines(), 1):
        try:
            if line.strip():
                label, *corners = line.split()
                xmin, ymin, xmax, ymax = map(float, corners)
                objects.append((str(int(label)), [xmin, ymin, xmax, ymax], False))
        except ValueError as problem:
            raise DataError(f"{path}:{number}: a line is the number of a label, xmin, ymin, xmax and ymax") from problem
    return Annotated(height, width, objects)


READERS: dict[str, Callable[[str, int, int], Annotated]] = {"xml": read_xml, "json": read_json, "txt": read_txt}


def _content(path: str) -> bytes:
    with reading(path, DataError, "annotation"):
        return read_input(path)
