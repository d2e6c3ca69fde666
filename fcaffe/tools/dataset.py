"""Builds the data set of a folder of pictures: databases, mean, names of classes, and the form of the pictures."""

from __future__ import annotations

import functools
import os
import threading
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.data.backends import write_database
from fcaffe.data.database import Record, new_folder
from fcaffe.data.datum import array_to_datum
from fcaffe.data.form import INFO, LABELS, MEAN, Form
from fcaffe.data.image_list import ListedImage
from fcaffe.data.images import encode_image, header_of, opencv, read_file, resize_image
from fcaffe.data.mean import Mean, mean_to_blob
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import write_binary
from fcaffe.tools.image_sets import pooled
from fcaffe.tools.listing import TEST, TRAIN, Listing, some

KEY = 400  # bytes; an LMDB takes 511
SAMPLE_SIDE = 32


@dataclass
class Class:
    """What was seen of a class: stored pictures by part, the least and largest sides, and the numbers of channels."""

    counts: dict[str, int] = field(default_factory=lambda: {TRAIN: 0, TEST: 0})
    least: int = 1 << 30
    most: int = 0
    channels: set[int] = field(default_factory=set)


@dataclass
class Seen:
    """What was seen of a data set: its classes, why pictures were left out, and pictures in both parts."""

    classes: list[Class]
    unreadable: dict[str, list[str]] = field(default_factory=dict)  # paths, by the reason
    twice: list[tuple[str, str]] = field(default_factory=list)  # of training, of test
    turned: int = 0  # by their EXIF orientation
    form: Form = field(default_factory=Form)


class _Loaded(NamedTuple):
    """A picture's record, or why there is none; its shape; the sides and channels of its file, and a hash of that.

    The hash differs from process to process.
    """

    record: bytes
    reason: str = ""
    shape: tuple[int, ...] = ()
    sides: tuple[int, int] = (0, 0)
    channels: int = 0
    turned: bool = False
    digest: int = 0


Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]  # yields items, of this number and name, and counts them


def build(out: str, listing: Listing, form: Form, encode: str, progress: Progress) -> Seen:
    """Write the data set of a listing to the new folder `out`, which appears complete at the end or not at all.

    Without a size in `form` all pictures must have the same. `encode` is "" for pixels, or the kind of picture files to
    store. Raises DataError: the folder exists, a class has no picture, the disk is full.
    """
    opencv()  # raises if it is missing
    _check_classes(listing, {image.label for image in listing.parts[TRAIN]})
    builder = _Builder(listing, form, encode)
    seen, mean = builder.seen, builder.mean
    with new_folder(out, "data set") as folder:
        for part, images in listing.parts.items():
            if not images:
                raise DataError(f"no pictures to {part} with: add some to each class")
            records = builder.records(part, progress(images, len(images), f"{part} pictures"))
            try:
                with log.quiet():
                    write_database(os.path.join(folder, f"{part}_lmdb"), records, "lmdb")
            except DataError as problem:
                raise DataError(str(problem).replace(folder, out)) from problem
            listing.parts[part] = builder.kept[part]
            lines = (f"{image.path} {image.label}" for image in builder.kept[part])
            _write_lines(os.path.join(folder, f"{part}.txt"), lines)
        _check_classes(listing, {label for label, one in enumerate(seen.classes) if one.counts[TRAIN]})
        seen.twice = list(builder.twice())
        seen.form = form._replace(size=(mean.shape[1], mean.shape[2]))
        write_binary(os.path.join(folder, MEAN), mean_to_blob(mean.result()))
        _write_lines(os.path.join(folder, LABELS), listing.names)
        Path(folder, INFO).write_text(seen.form.info(listing.root), encoding="utf-8")
    return seen


class _Builder:
    """Makes the records of a listing's pictures, and notes what it has seen of them."""

    def __init__(self, listing: Listing, form: Form, encode: str) -> None:
        self.listing, self.form, self.encode = listing, form, encode
        self.seen = Seen([Class() for _ in listing.names])
        self.mean = Mean()  # of the pictures to train with
        self.adding = threading.Lock()  # to the mean, which takes pixels at once: they would fill the memory
        self.kept: dict[str, list[ListedImage]] = {TRAIN: [], TEST: []}
        self.digests = {TRAIN: array("q"), TEST: array("q")}  # of the kept pictures

    def load(self, part: str, image: ListedImage) -> _Loaded:
        path = self.listing.root + image.path
        if "\n" in image.path or "\r" in image.path:
            return _Loaded(b"", "named with a line break")
        if not os.path.exists(path):
            return _Loaded(b"", "not there")
        try:
            content = read_file(path)
        except DataError:
            return _Loaded(b"", "not readable")
        try:
            header = header_of(content)
            if not content or not header.is_whole:
                return _Loaded(b"", "truncated" if content else "empty")
            pixels = self.form._replace(size=None).load(content, f'"{path}"')
        except DataError:
            return _Loaded(b"", "no picture, or damaged")
        sides, channels = (pixels.shape[1], pixels.shape[2]), header.channels or len(pixels)
        pixels = np.ascontiguousarray(self.form.fit(pixels))
        if self.encode:
            datum = pb.Datum(data=encode_image(pixels, self.encode), encoded=True, label=image.label)
        else:
            datum = array_to_datum(pixels, image.label)
        with self.adding:
            if part == TRAIN and self.mean.shape in ((), pixels.shape):
                self.mean.add(pixels)
        record = datum.SerializeToString()
        return _Loaded(record, "", pixels.shape, sides, channels, header.orientation > 1, hash(content))

    def records(self, part: str, images: Iterable[ListedImage]) -> Iterator[Record]:
        """Yields the record of each picture that can be read. Raises DataError if none can, and for other sizes."""
        kept, root = self.kept[part], self.listing.root
        for image, one in pooled(functools.partial(self.load, part), images):
            if one.reason:
                self.seen.unreadable.setdefault(one.reason, []).append(image.path)
                continue
            if self.mean.count and one.shape != self.mean.shape:
                (_, height, width), (_, *sides) = one.shape, self.mean.shape
                raise DataError(
                    f'"{root}{image.path}" has {height} x {width} pixels (height x width), and others have '
                    f"{sides[0]} x {sides[1]}: give the size of all, such as --size 96x96"
                )
            self._note(part, image, one)
            yield b"%08d_%s" % (len(kept) - 1, os.fsencode(image.path)[:KEY]), one.record
        if not kept:
            last = f'"{image.path}", is {one.reason}'
            raise DataError(f"none of the {part} pictures in {root or '.'} can be read; the last one, {last}")

    def _note(self, part: str, image: ListedImage, one: _Loaded) -> None:
        found = self.seen.classes[image.label]
        found.counts[part] += 1
        found.least, found.most = min(found.least, *one.sides), max(found.most, *one.sides)
        found.channels.add(one.channels)
        self.seen.turned += one.turned
        self.digests[part].append(one.digest)
        self.kept[part].append(image)

    def twice(self) -> Iterator[tuple[str, str]]:
        """Yields pairs of paths of equal files, one to train with and one to test with."""
        trained = dict(zip(self.digests[TRAIN], self.kept[TRAIN], strict=True))
        for digest, image in zip(self.digests[TEST], self.kept[TEST], strict=True):
            if digest in trained:
                yield trained[digest].path, image.path


def _check_classes(listing: Listing, filled: Collection[int]) -> None:
    """Raise DataError if a class has no picture to train with; the `filled` ones have some."""
    if empty := [name for label, name in enumerate(listing.names) if label not in filled]:
        raise DataError(f"no picture to train with in the class {some(empty)}: add some, or take the class away")


def _write_lines(path: str, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{line}\n" for line in lines)


def told(listing: Listing, seen: Seen) -> Iterator[str]:
    """Yields lines about what was left out and what is remarkable."""
    for reason, paths in seen.unreadable.items():
        yield f"Left out, {reason} ({len(paths)}): {some(paths)}"
    if listing.junk:
        yield f"Left out: {listing.junk} hidden files, Thumbs.db and the like"
    for folder in listing.unused:
        yield f"Left out: the folder {listing.root}{folder}, for fcaffe predict"
    if seen.turned:
        yield f"Turned upright, as their EXIF orientation says: {seen.turned}"
    if seen.twice:
        pairs = some([f"{train} = {test}" for train, test in seen.twice])
        yield f"In both train and test, which makes the tests look better: {pairs}"


def rows(listing: Listing, seen: Seen) -> Iterator[tuple[str, ...]]:
    """Yields the rows of a table of the classes."""
    for number, (name, one) in enumerate(zip(listing.names, seen.classes, strict=True)):
        sides = f"{one.least}" if one.least == one.most else f"{one.least} to {one.most}"
        channels = ", ".join(map(str, sorted(one.channels)))
        yield (name, str(number), str(one.counts[TRAIN]), str(one.counts[TEST]), sides, channels)


COLUMNS = ("class", "label", "train", "test", "sides in pixels", "channels")


def unpack_sample(name: str, out: str) -> int:
    """Write a sample of pictures to the new folder `out`, in folders of classes. Returns their number.

    The digits get colours of ink and paper, and SAMPLE_SIDE x SAMPLE_SIDE pixels. Raises DataError.
    """
    path = Path(__file__).parents[1] / "samples" / "uci_digits" / "digits.npz"
    with np.load(path) as stored:
        images, labels = stored["images"], stored["labels"]
    draw = np.random.default_rng(1)
    with new_folder(out, "sample") as folder:
        for label in range(10):
            os.mkdir(os.path.join(folder, str(label)))
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            ink, paper = draw.integers(0, 100, (3, 1, 1)), draw.integers(156, 256, (3, 1, 1))
            share = resize_image(15 * image[np.newaxis], SAMPLE_SIDE, SAMPLE_SIDE) / 240
            pixels = (share * ink + (1 - share) * paper).round().astype(np.uint8)
            with open(os.path.join(folder, str(label), f"{number:04d}.png"), "wb") as file:
                file.write(encode_image(pixels, "png"))
    return len(images)
