"""Converts lists of pictures with annotations to AnnotatedDatum records, as SSD's convert_annoset."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fcaffe import log
from fcaffe.data.annotated import read_label_map
from fcaffe.data.image_list import ListedImage
from fcaffe.errors import DataError
from fcaffe.input_files import read_input, reading
from fcaffe.proto import caffe_pb2 as pb

INT = 2**31


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
