"""Lists of pictures and their classes: from folders of classes, from lists, and from tables (CSV)."""

from __future__ import annotations

import contextlib
import csv
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fcaffe.data.form import PICTURES, read_form
from fcaffe.data.image_list import ListedImage, labelled_lines
from fcaffe.data.lines import numbered_lines
from fcaffe.errors import DataError
from fcaffe.input_files import reading

TRAIN, TEST = "train", "test"
HELD_OUT = ("val", "valid", "validation")  # folders of pictures for the tests during a training
JUNK = frozenset({"thumbs.db", "desktop.ini", "ehthumbs.db", "__macosx", "@eadir"})
SHOWN = 5  # names in a message


@dataclass
class Listing:
    """The pictures of a data set: their paths within `root`, and the index of the class of each in `names`.

    `unused` are folders that stay out, and `junk` counts files such as Thumbs.db.
    """

    root: str
    names: list[str]
    parts: dict[str, list[ListedImage]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    junk: int = 0

    def split(self, share: float, seed: int) -> None:
        """Hold out a share of the pictures of each class for tests, unless there are some."""
        if TEST in self.parts:
            return
        draw, kept, held_out = random.Random(seed), list[ListedImage](), list[ListedImage]()
        for images in _by_class(self.parts[TRAIN]):
            draw.shuffle(images)
            count = min(max(round(share * len(images)), 1), len(images) - 1)
            held_out += images[:count]
            kept += images[count:]
        self.parts = {TRAIN: kept, TEST: held_out}

    def shuffle(self, seed: int) -> None:
        for part in self.parts.values():
            random.Random(seed).shuffle(part)

    def limit(self, most: int) -> None:
        """Retain at most so many pictures of each class in each part."""
        for name, images in self.parts.items():
            self.parts[name] = [image for of_class in _by_class(images) for image in of_class[:most]]


def _by_class(images: Sequence[ListedImage]) -> list[list[ListedImage]]:
    """The pictures of each class, in the order of the classes."""
    found: dict[int, list[ListedImage]] = {}
    for image in images:
        found.setdefault(image.label, []).append(image)
    return [found[label] for label in sorted(found)]


def list_pictures(source: str, classes: Sequence[str] = (), label_column: str = "") -> Listing:
    """The pictures of a folder, or of a list or table. `classes` gives the names in the order of their numbers.

    Raises DataError for a source without classes, and for a picture of another class than these.
    """
    if os.path.isdir(source):
        return _list_folder(source, classes)
    return _list_file(source, classes, label_column)


def _list_folder(source: str, classes: Sequence[str]) -> Listing:
    top = _folders(source)
    lower = {name.lower(): name for name in top}
    folders, unused = {TRAIN: ""}, list[str]()
    is_divided = TRAIN in lower and lower.keys() <= {TRAIN, TEST, *HELD_OUT}
    if is_divided and _folders(os.path.join(source, lower[TRAIN])):
        tests = [lower[name] for name in (*HELD_OUT, TEST) if name in lower]
        folders = {TRAIN: lower[TRAIN]} | ({TEST: tests[0]} if tests else {})
        unused = tests[1:]
    found = {part: _folders(os.path.join(source, folder)) for part, folder in folders.items()}
    names = list(classes) or found[TRAIN]
    if not names:
        raise DataError(
            f"{source} has no folders of classes: put the pictures of each class into a folder of its name, or give a "
            "list with a path and a label on each line"
        )
    listing = Listing(os.path.join(source, ""), names, unused=unused)
    for part, folder in folders.items():
        where = os.path.join(source, folder)
        if foreign := [name for name in found[part] if name not in names]:
            known = "the list of classes" if classes else os.path.join(source, folders[TRAIN])
            raise DataError(f"{where} has the class {some(foreign)}, and {known} has none of that name")
        images = listing.parts.setdefault(part, [])
        for label, name in enumerate(names):
            for path in _files(os.path.join(source, folder, name), listing):
                images.append(ListedImage(os.path.relpath(path, source), label))
    return listing


def _folders(path: str) -> list[str]:
    """The names of the folders in a folder, in bytewise order, without hidden ones."""
    with reading(path, DataError, "folder of pictures"):
        found = [entry.name for entry in os.scandir(path) if entry.is_dir() and not _is_junk(entry.name)]
    return sorted(found, key=os.fsencode)


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name.lower() in JUNK


def pictures_in(folder: str) -> list[str]:
    """The paths of the files in a folder and in the folders within, in order, without hidden ones and Thumbs.db."""
    return list(_files(folder, Listing(folder, [])))


def _files(folder: str, listing: Listing) -> Iterator[str]:
    """Yields the paths of the files in a folder and in the folders within, in order. Links to folders are followed."""
    visited = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(where)
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders[:] = sorted((name for name in folders if not _is_junk(name)), key=os.fsencode)
        for name in sorted(files, key=os.fsencode):
            if _is_junk(name):
                listing.junk += 1
            else:
                yield os.path.join(where, name)


def _list_file(source: str, classes: Sequence[str], label_column: str) -> Listing:
    """The pictures of a list. Its paths begin in its own folder, the present one, or the one that info.json names."""
    rows = list(_rows(source, label_column))
    words = [label for _, label in rows]
    names = list(classes) or _names_of(words)
    index = {name: number for number, name in enumerate(names)}
    numbered = bool(classes) and not set(words) <= index.keys()
    if numbered:  # the labels are numbers in the list of classes
        index = {str(number): number for number in range(len(names))}
    if foreign := sorted(set(words) - index.keys()):
        raise DataError(f"{source} has the class {some(foreign)}, and the list of classes has none of that name")
    beside = os.path.join(os.path.dirname(source), "")
    root = beside if (found := _root(beside, rows[0][0])) is None else found
    images = [ListedImage(_path(root, path)[len(root) :], index[label]) for path, label in rows]
    return Listing(root, names, {TRAIN: images})


def _root(beside: str, path: str) -> str | None:
    """The folder in which the paths of a list begin, by the first one; None if that picture is nowhere."""
    roots = [beside, ""]
    with contextlib.suppress(DataError):  # an info.json of another program
        if isinstance(named := read_form(beside)[1].get(PICTURES), str):
            roots.append(os.path.join(named, ""))
    return next((root for root in roots if os.path.exists(_path(root, path))), None)


def _names_of(words: Sequence[str]) -> list[str]:
    """The names of classes in bytewise order; numbers in the order of their values."""
    names = set(words)
    if all(name.isdecimal() for name in names):
        return sorted(names, key=int)
    return sorted(names, key=os.fsencode)


def _path(root: str, path: str) -> str:
    """The path of a picture. A backslash of Windows becomes a slash if there is no such file."""
    if "\\" in path and not os.path.exists(root + path):
        path = path.replace("\\", "/")
    return root + path


def _rows(source: str, label_column: str) -> Iterator[tuple[str, str]]:
    """Yields path and label of each row of a list or table. Raises DataError."""
    if not label_column and not source.lower().endswith((".csv", ".tsv")):
        for number, path, words in labelled_lines(source):
            if not words:
                raise DataError(f'{source}: line {number}, "{path}", has no label: a line is a path, a blank, a label')
            yield path.strip(), words[0]
        return
    lines = [os.fsdecode(line) for _, line in numbered_lines(source, "list of images")]
    separator = ";" if lines[0].count(";") > lines[0].count(",") else ","
    delimiter = "\t" if source.lower().endswith(".tsv") else separator
    try:
        table = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
    except csv.Error as problem:
        raise DataError(f"{source} is no table: {problem}") from problem
    column, beside = 1, os.path.join(os.path.dirname(source), "")
    if _root(beside, table[0][0]) is None:
        header = table[0]
        if is_header := len(table) > 1 and header[0] not in [row[0] for row in table[1:]] and "." not in header[0]:
            table = table[1:]
        labels = [name for name in header[1:] if name] if is_header else []
        if label_column:
            if label_column not in labels:
                raise DataError(f'{source} has no column "{label_column}"; its columns are {", ".join(header)}')
            column = header.index(label_column)
        elif len(labels) > 1:
            raise DataError(f"{source} has the columns {', '.join(labels)}: say by --label-column which is the class")
    elif label_column:
        raise DataError(f'{source} has no line with the names of columns, such as "{label_column}"; add one')
    for number, row in enumerate(table, 1):
        if len(row) <= column or not row[column]:
            raise DataError(f"{source}: row {number} ({', '.join(row)}) has no label; a row is path,label")
        if len(row) > 2 and not label_column and any(row[2:]):
            raise DataError(f"{source}: row {number} has {len(row)} columns: say by --label-column which is the class")
        yield row[0], row[column]


def some(names: Sequence[str]) -> str:
    """The first names, in quotes, and the number of the others."""
    quoted = ", ".join(f'"{name}"' for name in names[:SHOWN])
    return f"{quoted} and {len(names) - SHOWN} more" if len(names) > SHOWN else quoted
