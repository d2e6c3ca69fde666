"""Builds the data set of a folder of pictures: databases, mean, names of classes, and the form of the pictures."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.backends import write_database
from fcaffe.data.database import Record, new_folder
from fcaffe.data.datum import array_to_datum
from fcaffe.data.form import INFO, LABELS, MEAN, Form
from fcaffe.data.image_list import ListedImage
from fcaffe.data.images import encode_image, header_of, opencv, read_file, resize_image
from fcaffe.data.mean import mean_to_blob
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import write_binary
from fcaffe.tools.image_sets import pooled
from fcaffe.tools.listing import TEST, TRAIN, Listing

KEY = 400  # bytes; an LMDB takes 511
SHOWN = 5
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


@dataclass
class _Loaded:
    """A picture: its pixels, or why there are none."""

    pixels: np.ndarray | None
    reason: str = ""
    sides: tuple[int, int] = (0, 0)
    channels: int = 0
    turned: bool = False
    digest: int = 0


Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]


def build(out: str, listing: Listing, form: Form, encode: str, progress: Progress) -> Seen:
    """Write the data set of a listing to the new folder `out`, which appears complete at the end or not at all.

    Args:
        form: of the stored pictures. Without a size all pictures must have the same.
        encode: "" for pixels, or the kind of picture files to store.
        progress: yields the items, of this number, and shows how many have come; the last argument names them.

    Raises DataError: the folder exists, a class has no picture, the disk is full.
    """
    opencv()  # raises if it is missing
    seen = Seen([Class() for _ in listing.names], form=form)
    labels = {image.label for image in listing.parts[TRAIN]}
    if empty := [name for label, name in enumerate(listing.names) if label not in labels]:
        raise DataError(f"no picture to train with in the class {_some(empty)}: add some, or take the class away")
    with new_folder(out, "data set") as folder:
        total, digests = _Mean(), {}
        for part, images in listing.parts.items():
            loaded = _load_all(listing.root, progress(images, len(images), f"{part} pictures"), form)
            kept: list[ListedImage] = []
            digests[part] = array("Q")
            mean = total if part == TRAIN else None
            records = _records(loaded, part, seen, kept, digests[part], mean, encode, listing)
            try:
                with log.quiet():
                    write_database(os.path.join(folder, f"{part}_lmdb"), records, "lmdb")
            except DataError as problem:
                if images and not kept:
                    raise DataError(
                        f"none of the {len(images)} {part} pictures in {listing.root or '.'} can be read; the first, "
                        f'"{images[0].path}", is {_reasons(seen)[0]}'
                    ) from problem
                if not images:
                    raise DataError(f"no pictures to {part} with: add some to each class") from problem
                raise DataError(str(problem).replace(folder, out)) from problem
            listing.parts[part] = kept
            _write(folder, f"{part}.txt", "".join(f"{image.path} {image.label}\n" for image in kept))
        for name, one in zip(listing.names, seen.classes, strict=True):
            if not one.counts[TRAIN]:
                raise DataError(f'no picture to train with in the class "{name}" can be read: add some')
        seen.twice = list(_twice(listing, digests))
        write_binary(os.path.join(folder, MEAN), mean_to_blob(total.result()))
        _write(folder, LABELS, "".join(f"{name}\n" for name in listing.names))
        seen.form = form._replace(size=total.size)
        _write(folder, INFO, seen.form.info())
    return seen


class _Mean:
    def __init__(self) -> None:
        self.sum = np.zeros(0, np.float64)
        self.count = 0
        self.size: tuple[int, int] = (0, 0)

    def add(self, pixels: np.ndarray) -> None:
        if not self.count:
            self.sum = np.zeros(pixels.shape, np.float64)
            self.size = (pixels.shape[1], pixels.shape[2])
        self.sum += pixels
        self.count += 1

    def result(self) -> np.ndarray:
        return (self.sum / self.count).astype(np.float32)


def _load_all(root: str, images: Iterable[ListedImage], form: Form) -> Iterator[tuple[ListedImage, _Loaded]]:
    def load(image: ListedImage) -> _Loaded:
        path = root + image.path
        if "\n" in image.path or "\r" in image.path:
            return _Loaded(None, "named with a line break")
        if not os.path.exists(path):
            return _Loaded(None, "not there")
        try:
            content = read_file(path)
        except DataError:
            return _Loaded(None, "not readable")
        try:
            header = header_of(content)
            if not content or not header.is_whole:
                return _Loaded(None, "truncated" if content else "empty")
            pixels = form._replace(size=None).load(content, f'"{path}"')
        except DataError:
            return _Loaded(None, "no picture, or damaged")
        digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        sides = (pixels.shape[1], pixels.shape[2])
        channels = header.channels or len(pixels)
        return _Loaded(form.fit(pixels), "", sides, channels, header.orientation > 1, digest)

    yield from pooled(load, images)


def _records(
    loaded: Iterable[tuple[ListedImage, _Loaded]],
    part: str,
    seen: Seen,
    kept: list[ListedImage],
    digests: array[int],
    mean: _Mean | None,
    encode: str,
    listing: Listing,
) -> Iterator[Record]:
    """Yields the record of each picture that can be read, and notes what was seen of it."""
    first: tuple[int, ...] = ()
    for image, one in loaded:
        if one.pixels is None:
            seen.unreadable.setdefault(one.reason, []).append(image.path)
            continue
        first = first or (one.pixels.shape if seen.form.size is None or part == TRAIN else first)
        if first and one.pixels.shape != first:
            raise DataError(
                f'"{listing.root}{image.path}" has {one.pixels.shape[1]} x {one.pixels.shape[2]} pixels (height x '
                f"width), and others have {first[1]} x {first[2]}: give the size of all, such as --size 96x96"
            )
        if mean is not None:
            mean.add(one.pixels)
            seen.form = seen.form._replace(size=mean.size)  # of the test pictures, too
        found = seen.classes[image.label]
        found.counts[part] += 1
        found.least, found.most = min(found.least, *one.sides), max(found.most, *one.sides)
        found.channels.add(one.channels)
        seen.turned += one.turned
        digests.append(one.digest)
        key = b"%08d_%s" % (len(kept), os.fsencode(image.path)[:KEY])
        kept.append(image)
        pixels = np.ascontiguousarray(one.pixels)
        if encode:
            datum = pb.Datum(data=encode_image(pixels, encode), encoded=True, label=image.label)
        else:
            datum = array_to_datum(pixels, image.label)
        yield key, datum.SerializeToString()


def _twice(listing: Listing, digests: dict[str, array[int]]) -> Iterator[tuple[str, str]]:
    """Yields pairs of paths of equal files, one to train with and one to test with."""
    train, test = (np.frombuffer(digests.get(part, array("Q")), np.uint64) for part in (TRAIN, TEST))
    order = np.argsort(train, kind="stable")
    found = np.searchsorted(train[order], test)
    for index, position in enumerate(found.tolist()):
        if position < len(train) and train[order[position]] == test[index]:
            yield listing.parts[TRAIN][order[position]].path, listing.parts[TEST][index].path


def _reasons(seen: Seen) -> list[str]:
    return list(seen.unreadable) or ["unreadable"]


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def told(listing: Listing, seen: Seen) -> Iterator[str]:
    """Yields lines about what was left out and what is remarkable."""
    for reason, paths in seen.unreadable.items():
        yield f"Left out, {reason}: {_some(paths)}"
    if listing.junk:
        yield f"Left out: {listing.junk} hidden files, Thumbs.db and the like"
    for folder in listing.unused:
        yield f"Left out: the folder {listing.root}{folder}, for fcaffe predict"
    if seen.turned:
        yield f"Turned upright, as their EXIF orientation says: {seen.turned}"
    if seen.twice:
        pairs = _some([f"{train} = {test}" for train, test in seen.twice])
        yield f"In both train and test, which makes the tests look better: {pairs}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more} ({len(names)})"


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
    from pathlib import Path

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
