"""Lists of image files with labels or with images of labels, and batches of them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.data.batches import UNDECIDED, ImageBatches
from fcaffe.data.images import Color, decode_image, read_file, resize_image, why_no_picture
from fcaffe.data.lines import numbered_lines
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Decision, Transformer
from fcaffe.errors import DataError
from fcaffe.rng import CaffeRandom

STATE_SIZE = len(CaffeRandom(0).state())
MOST_PIXELS = 1 << 30  # of an image, after resizing
MOST_CHECKED = 100_000  # files of a list whose beginnings are read before the first batch
_INTEGER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_LABEL = re.compile(r"[+-]?(\d{1,9}|\d*\.\d+|\d+\.)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)


class ListedImage(NamedTuple):
    """A line of a list: the file's path and the label, a number, several, or the path of an image of labels."""

    path: str
    label: Any


def labelled_lines(source: str, size: int = 1) -> Iterator[tuple[int, str, list[str]]]:
    """Yields number, path and labels of each line of a list: a path and `size` labels with blanks between, or fewer.

    Skips empty lines. Raises DataError.
    """
    for number, line in numbered_lines(source, "list of images"):
        path, *labels = map(os.fsdecode, line.rsplit(None, size))
        yield number, path, labels


def read_image_list(source: str, size: int = 1) -> list[ListedImage]:
    """Read a list: on each line a path and `size` labels with blanks between. A single one is 0 if it is missing.

    Skips empty lines. Raises DataError.
    """
    if size < 1:
        raise DataError(f"label_size must be 1 or more, not {size}")
    images, without = [], 0
    for number, path, labels in labelled_lines(source, size):
        if size > 1:
            words = [*path.split()[1:], *labels]
            found = len(list(itertools.takewhile(_LABEL.fullmatch, reversed(words))))
            if found != size:
                raise DataError(f"{source}:{number}: {found} numbers after the path, but label_size is {size}")
        elif labels and not _LABEL.fullmatch(labels[0]):
            raise DataError(f'{source}:{number}: "{labels[0]}" is no label; a line is a path, a blank, a number')
        without += not labels
        numbers = [int(label) if _INTEGER.fullmatch(label) else float(label) for label in labels or ["0"]]
        images.append(ListedImage(path, numbers if size > 1 else numbers[0]))
    if without:
        log.warning(f"{source}: {without} of {len(images)} lines have no label, and get label 0, as in Caffe")
    return images


def read_pair_list(source: str) -> list[ListedImage]:
    """Read a list with the paths of an image and of its labels on each line. Skips empty lines. Raises DataError."""
    pairs = []
    for number, path, labels in labelled_lines(source):
        words = [*path.split(), *labels]
        if len(words) != 2:
            raise DataError(f'{source}:{number}: "{" ".join(words)}" is not two paths with a blank between them')
        pairs.append(ListedImage(*words))
    return pairs


class ListBatches(ImageBatches[ListedImage]):
    """The images of an ImageDataParameter's list, in its order or shuffled before each round.

    As in Caffe, `random` gives first the seed of the shuffles, then the number of images to skip.
    """

    def __init__(self, param: Any, transformer: Transformer, random: CaffeRandom) -> None:
        super().__init__(transformer, param.batch_size)
        self.source: str = param.source
        self.root_folder: str = param.root_folder
        self.color = Color.COLOR if param.is_color else Color.GRAY
        self.size = (param.new_height, param.new_width)
        if (param.new_height > 0) != (param.new_width > 0):
            raise DataError("both new_height and new_width are needed, or neither")
        if param.new_height * param.new_width > MOST_PIXELS:
            raise DataError(
                f"new_height {param.new_height} x new_width {param.new_width} are more than {MOST_PIXELS} pixels"
            )
        log.opening_image_list(param.source)
        self.images = self.read_list(param)
        self._order = np.arange(len(self.images), dtype="<u4")
        self._shuffles: CaffeRandom | None = None
        self._shuffle_state = b""
        if param.shuffle:
            log.shuffling_images()
            self._shuffles = CaffeRandom(random.draw())
            self._shuffle()
        log.number_of_images(len(self.images))
        self._position = 0  # images read or skipped
        if param.rand_skip:
            self._position = random.draw() % param.rand_skip
            log.skipping_images(self._position)
            if self._position >= len(self.images):
                raise DataError(
                    f"rand_skip {param.rand_skip} is more than the {len(self.images)} images of "
                    f'"{param.source}", and {self._position} were to be skipped; lower it'
                )
        first = self.images[self._order[self._position]]
        self.shape = self.batch_shape(first, self.prepare(first, UNDECIDED)[0])
        self._is_checked = False

    @property
    def position(self) -> int:
        return self._position

    def fill(self, batch: Batch) -> None:
        if not self._is_checked:
            self._check_files()
            self._is_checked = True
        super().fill(batch)

    def _check_files(self) -> None:
        """Raise DataError for the first file of this worker's share of the list that does not begin as a picture.

        Otherwise training would end when that file is its turn. Of a long list every n-th file is checked.
        """
        first, indices = self.share.first, range(0, len(self.images), -(-len(self.images) // MOST_CHECKED))
        own = range(first, first + self.share.count)
        checked = [index for number, index in enumerate(indices) if number % self.share.total in own]
        self.decoders.each(lambda number: self._check(checked[number]), len(checked))

    def _check(self, index: int) -> None:
        for path in self.paths(self.images[index]):
            path = self.root_folder + path
            if problem := why_no_picture(path):
                number, _ = next(itertools.islice(numbered_lines(self.source, "list of images"), index, None))
                raise DataError(f'{self.source}:{number}: "{path}" {problem}; correct the line, or remove it')

    def paths(self, item: ListedImage) -> list[str]:
        """The paths of an item's files, without `root_folder`."""
        return [item.path]

    def take(self, count: int) -> list[ListedImage]:
        images = []
        for _ in range(count):
            images.append(self.images[self._order[self._position % len(self.images)]])
            self._position += 1
            if self._shuffles is not None and self._position % len(self.images) == 0:
                self._shuffle()
        return images

    def read_list(self, param: Any) -> list[ListedImage]:
        self.label_shape = (param.label_size,) if param.label_size > 1 else ()
        return read_image_list(param.source, param.label_size)

    def load(self, item: ListedImage) -> tuple[np.ndarray, Any]:
        image = self.decode(item.path, self.color)
        return (resize_image(image, *self.size) if self.size[0] else image), item.label

    def decode(self, path: str, color: Color) -> np.ndarray:
        path = self.root_folder + path
        try:
            return decode_image(read_file(path), f'"{path}"', color)
        except DataError as problem:
            raise DataError(f'{problem} (in the list "{self.source}")') from problem

    def name(self, item: ListedImage) -> str:
        return f'"{self.root_folder}{item.path}"'

    def state(self) -> tuple[int, bytes]:
        """The position, and the states of the transformer's generator and of the shuffles with the present order."""
        random = self.transformer.random
        return self._position, (random.state() if random is not None else b"") + self._shuffle_state

    def set_state(self, position: int, random: bytes) -> None:
        transforms = STATE_SIZE * (self.transformer.random is not None)
        order = transforms + STATE_SIZE * (self._shuffles is not None)
        if len(random) != order + self._order.nbytes * (self._shuffles is not None):
            raise DataError(
                f'the snapshot is of another list than "{self.source}" with its {len(self.images)} images, '
                "or of other parameters of its layer"
            )
        if self.transformer.random is not None:
            self.transformer.random.set_state(random[:transforms])
        if self._shuffles is not None:
            self._shuffles.set_state(random[transforms:order])
            self._order = np.frombuffer(random, "<u4", offset=order)
            self._shuffle_state = random[transforms:]
        self._position = position

    def _shuffle(self) -> None:
        """Shuffle the order of the last round again, as Caffe does."""
        assert self._shuffles is not None
        order = self._order.tolist()
        self._shuffles.shuffle(order)
        self._order = np.array(order, "<u4")
        self._shuffle_state = self._shuffles.state() + self._order.tobytes()


class PairBatches(ListBatches):
    """The images of a DenseImageDataParameter's list with their images of labels, which are cropped and mirrored alike.

    `batch.objects` has the labels, height x width each. They are resized to the nearest pixel; ENet's
    `label_divide_factor` makes them smaller than the image.
    """

    def __init__(self, param: Any, transformer: Transformer, random: CaffeRandom) -> None:
        self.divisor: int = param.label_divide_factor
        super().__init__(param, transformer, random)

    def read_list(self, param: Any) -> list[ListedImage]:
        return read_pair_list(param.source)

    def paths(self, item: ListedImage) -> list[str]:
        return [item.path, item.label]

    def fill(self, batch: Batch) -> None:
        batch.objects = [np.empty(0)] * self.share.count
        super().fill(batch)

    def prepare(self, item: ListedImage, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        image, path = self.load(item)
        labels = self.decode(path, Color.GRAY)
        _, height, width = image.shape
        if self.size[0]:
            labels = resize_image(labels, height // self.divisor, width // self.divisor, nearest=True)
        if labels.shape[1:] != (height // self.divisor, width // self.divisor):
            raise DataError(
                f'"{path}" has {labels.shape[1]} x {labels.shape[2]} labels (height x width) for the '
                f'{height} x {width} pixels of "{item.path}"'
            )
        rows, columns = self.transformer.window(image.shape, decision)
        labels = labels[0, rows, columns] if self.transformer.crop[0] else labels[0]
        return image, labels[:, ::-1] if decision.mirror else labels

    def set_label(self, batch: Batch, index: int, label: np.ndarray) -> None:
        batch.objects[index] = label
