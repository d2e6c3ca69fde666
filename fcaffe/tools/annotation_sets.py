"""Converts lists of pictures with annotations to AnnotatedDatum records, as SSD's convert_annoset."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fcaffe import log
from fcaffe.data.label_map import read_label_map
from fcaffe.data.lines import numbered_lines
from fcaffe.errors import DataError
from fcaffe.input_files import open_input, read_input
from fcaffe.proto import caffe_pb2 as pb

NO_LABEL = -1


class ListedPair(NamedTuple):
    """A line of a list for detection: the paths of a picture and of its annotation."""

    path: str
    annotation: str
    label: int = NO_LABEL


class ListedObject(NamedTuple):
    """An object of an annotation file: the name or number of its label, and xmin, ymin, xmax, ymax in pixels."""

    name: str
    corners: list[float]
    difficult: bool = False


class Annotated(NamedTuple):
    """The objects of a file, with the height and width of the picture that their corners refer to."""

    height: int
    width: int
    objects: list[ListedObject]


def read_pairs(source: str) -> list[ListedPair]:
    """Read a list: on each line the path of a picture, a blank, and the path of its annotation. Raises DataError."""
    pairs = []
    try:
        with open_input(source) as file:
            for number, line in numbered_lines(file, source):
                parts = line.split()
                if len(parts) not in (0, 2):
                    raise DataError(
                        f"{source}:{number}: a line is the path of a picture, a blank, that of its annotation"
                    )
                if parts:
                    pairs.append(ListedPair(os.fsdecode(parts[0]), os.fsdecode(parts[1])))
    except OSError as problem:
        raise DataError(f'cannot read the list "{source}": {problem.strerror}') from problem
    if not pairs:
        raise DataError(f'the list "{source}" is empty')
    return pairs


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
    """A function from (datum, ListedPair, height, width) to its AnnotatedDatum, for `picture_records`.

    `labels` are those by name; None where annotations have numbers.
    """

    def record(datum: Any, pair: ListedPair, height: int, width: int) -> Any:
        path = root + pair.annotation
        annotated = pb.AnnotatedDatum(datum=datum, type=pb.AnnotatedDatum.BBOX)
        groups: dict[int, Any] = {}
        found = read(path, height, width)
        for one in found.objects:
            if labels is not None and one.name not in labels:
                raise DataError(f'{path}: the label map has no "{one.name}", only {", ".join(sorted(labels))}')
            label = int(one.name) if labels is None else labels[one.name]
            if label not in groups:
                groups[label] = annotated.annotation_group.add(group_label=label)
            annotation = groups[label].annotation.add(instance_id=len(groups[label].annotation))
            _put_box(annotation.bbox, one, found, path)
        return annotated

    return record


def _put_box(box: Any, one: ListedObject, annotated: Annotated, path: str) -> None:
    height, width = annotated.height, annotated.width
    xmin, ymin, xmax, ymax = one.corners
    if not (0 <= xmin <= xmax <= width and 0 <= ymin <= ymax <= height):
        corners = ", ".join(f"{corner:g}" for corner in one.corners)
        log.warning(f"{path}: the box of {one.name} ({corners}) exceeds its picture of {width} x {height} pixels")
    box.xmin, box.xmax = xmin / width, xmax / width
    box.ymin, box.ymax = ymin / height, ymax / height
    box.difficult = one.difficult


def read_xml(path: str, height: int, width: int) -> Annotated:
    """Read an annotation of PASCAL VOC. Its own size of the picture counts, if it has one. Raises DataError."""
    try:
        root = ElementTree.fromstring(_content(path))
        size = root.find("size")
        if size is not None:
            height, width = int(size.findtext("height", "")), int(size.findtext("width", ""))
        objects = [
            ListedObject(
                one.findtext("name", ""),
                [float(one.findtext(f"bndbox/{corner}", "")) for corner in ("xmin", "ymin", "xmax", "ymax")],
                difficult=one.findtext("difficult", "0").strip() == "1",
            )
            for one in root.iter("object")
        ]
    except (ElementTree.ParseError, ValueError) as problem:
        raise DataError(f"{path} is not an annotation of PASCAL VOC: {problem}") from problem
    return _checked(Annotated(height, width, objects), path)


def read_json(path: str, height: int, width: int) -> Annotated:
    """Read an annotation of one picture in the form of COCO. Raises DataError."""
    try:
        content = json.loads(_content(path))
        image = content["image"]
        objects = []
        for one in content["annotation"]:
            x, y, w, h = map(float, one["bbox"])
            objects.append(ListedObject(str(one["category_id"]), [x, y, x + w, y + h], bool(one["iscrowd"])))
        found = Annotated(int(image["height"]), int(image["width"]), objects)
    except (ValueError, KeyError, TypeError) as problem:
        raise DataError(f"{path} is not an annotation in COCO's form for SSD: {problem!r}") from problem
    return _checked(found, path)


def read_txt(path: str, height: int, width: int) -> Annotated:
    """Read lines of a label's number, xmin, ymin, xmax and ymax in pixels. Raises DataError."""
    objects = []
    for number, line in enumerate(_content(path).decode(errors="replace").splitlines(), 1):
        try:
            if line.strip():
                label, xmin, ymin, xmax, ymax = line.split()
                objects.append(ListedObject(str(int(label)), [float(xmin), float(ymin), float(xmax), float(ymax)]))
        except ValueError as problem:
            raise DataError(f"{path}:{number}: a line is the number of a label, xmin, ymin, xmax and ymax") from problem
    return _checked(Annotated(height, width, objects), path)


READERS = {"xml": read_xml, "json": read_json, "txt": read_txt}


def _content(path: str) -> bytes:
    try:
        return read_input(path)
    except OSError as problem:
        raise DataError(f'cannot read the annotation "{path}": {problem.strerror}') from problem


def _checked(annotated: Annotated, path: str) -> Annotated:
    if annotated.height < 1 or annotated.width < 1:
        raise DataError(f"{path}: the picture has the size {annotated.width} x {annotated.height}; give its true size")
    return annotated
