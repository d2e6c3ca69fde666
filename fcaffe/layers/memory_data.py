"""MemoryData: batches of images and labels that a script hands over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.datum import datum_to_array
from fcaffe.data.transformer import Transformer
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.net.layer import State


@register("MemoryData")
class MemoryData(Layer):
    """Cycles through arrays given by `reset` or `add`: tops data (batch_size, C, H, W) and label (batch_size)."""

    traits = Traits(bottoms=0, tops=2, reads_host=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.refuse_split("reads what a script gives it")
        p = self.param.memory_data_param
        self.batch_size = p.batch_size
        self.shape = (p.channels, p.height, p.width)
        if not self.batch_size * math.prod(self.shape):
            raise self.error("memory_data_param needs batch_size, channels, height and width, all positive")
        self.transformer = Transformer(self.param.transform_param, self.phase)
        self.transformer.seed(self.context.random)
        self._data: np.ndarray | None = None
        self._labels = np.empty(0, np.float32)
        self._position = 0
        self._added = False
        top[0].reshape(self.batch_size, *self.shape)
        top[1].reshape(self.batch_size)

    def reset(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Read from these arrays, without copies: float32 (n, C, H, W) and n labels, n a multiple of batch_size."""
        try:
            data, labels = np.asarray(data, np.float32), np.asarray(labels, np.float32)
        except (TypeError, ValueError) as problem:
            raise self.error(f"takes two arrays of numbers: {problem}") from problem
        if data.ndim != 4 or data.shape[1:] != self.shape:
            raise self.error(f"takes data of shape (n, {', '.join(map(str, self.shape))}), not {data.shape}")
        if labels.size != len(data) or labels.shape[:1] != data.shape[:1]:
            raise self.error(f"takes one label for each image, not {labels.shape} for {len(data)} images")
        self._check_number(len(data))
        if self.param.HasField("transform_param"):
            log.warning(f"layer {self.name}: reset() does not transform its data; transform_param applies to add()")
        self._take(data, labels)

    def add(self, datums: Sequence[Any]) -> None:
        """Read from these Datum messages (a multiple of batch_size), transformed; earlier ones must be used up."""
        if self._added:
            raise self.error("cannot add data before those added earlier have been used up")
        self._check_number(len(datums))
        images = [datum_to_array(datum, str(index).encode()) for index, datum in enumerate(datums)]
        for image in images:
            if self.transformer.output_shape(image.shape) != self.shape:
                raise self.error(f"takes images of shape {self.shape} after cropping, not {image.shape} before it")
        data = np.empty((len(datums), *self.shape), np.float32)
        self.transformer.transform(images, data)
        self._take(data, np.array([datum.label for datum in datums], np.float32))
        self._added = True

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self._data is None:
            raise self.error("has no data yet: call reset(data, labels) or set_input_arrays(data, labels) first")
        part = slice(self._position, self._position + self.batch_size)
        for blob, values in zip(top, (self._data, self._labels), strict=True):
            self.engine.upload(values[part], blob.data).wait()  # a script may write its arrays now
        self._position = (self._position + self.batch_size) % len(self._data)
        if self._position == 0:
            self._added = False

    def state(self) -> State:
        """The position and the generator of crops and mirrors; the images are the script's."""
        random = self.transformer.random
        state = b"" if random is None else random.state()
        return {"position": np.array(self._position, np.int64), "random": np.frombuffer(state, np.uint8)}

    def restore_state(self, state: State) -> None:
        """The script has to hand over the same arrays before, since `reset` and `add` begin at their first image."""
        position, random = int(state["position"]), state["random"].tobytes()
        count = 0 if self._data is None else len(self._data)
        if position and position >= count:
            raise self.error(
                f"the snapshot was taken at image {position} of its data, and it has {count} now: give it the same "
                "data before you restore"
            )
        self._position = position
        if random and self.transformer.random is not None:
            self.transformer.random.set_state(random)

    def _check_number(self, number: int) -> None:
        if number == 0 or number % self.batch_size:
            raise self.error(f"the number of images must be a multiple of batch_size {self.batch_size}, not {number}")

    def _take(self, data: np.ndarray, labels: np.ndarray) -> None:
        self._data = data
        self._labels = labels.reshape(-1)
        self._position = 0
        self._added = False
