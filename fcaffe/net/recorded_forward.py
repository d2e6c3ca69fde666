"""Forward passes of nodes that an engine has recorded, so that Python need not work out each time what to call.

Between two layers of a small net Python takes as long as the layers themselves. For inference with fixed weights most
layers do the same every time: the engine's routines on the same memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fcaffe.net.blob import Blob
from fcaffe.net.layer import Layer
from fcaffe.net.storage import Array, Storage


class RecordedForward:
    """The forward pass of a layer between these blobs. The first with fixed weights and certain memory is run as it is,
    the second is recorded, and from the third on the recording is played.

    A recording counts only if the engine's routines work on these blobs and parameters themselves, if nothing else has
    written the tops, and if it has been tried: it alone must write the tops anew, to the bit. So a layer that does part
    of its work by other means is always run as it is.
    """

    def __init__(self, layer: Layer, bottoms: list[Blob], tops: list[Blob], parameters: list[Blob]) -> None:
        self._layer, self._bottoms, self._tops, self._parameters = layer, bottoms, tops, parameters
        self._engine = layer.engine
        self._seen: tuple[Any, ...] = ()  # the weights and shapes of the last pass, and what its memory was
        self._memory: list[tuple[Storage, Array]] = []
        self._play: Callable[[], None] | None = None

    @staticmethod
    def suits(layer: Layer) -> bool:
        """Whether forward does nothing but write the tops, which depend on the bottoms and on parameters alone."""
        return layer.context.inference and layer.engine.records and RecordedForward.repeats(layer)

    @staticmethod
    def repeats(layer: Layer) -> bool:
        """Whether forward does the same whenever its bottoms and parameters are the same."""
        traits = layer.traits
        pure = traits.repeatable and traits.reshapes_by_shape and type(layer).forward_again is Layer.forward_again
        return pure and not traits.reads_host

    @property
    def play(self) -> Callable[[], None] | None:
        """The recording, if there is one that counts."""
        return self._play

    @property
    def memory(self) -> list[tuple[Storage, Array]]:
        """Where the recording counts: these storages with these buffers."""
        return self._memory

    def run(self, versions: list[int]) -> None:
        """`versions` is another list whenever a blob has changed its shape or storage."""
        fixed = self._engine.fixed
        if fixed is None:
            self._layer.forward(self._bottoms, self._tops)
            return
        if self._seen and self._seen[0] is fixed and self._seen[1] is versions and self._is_where_it_was():
            if self._play is not None:
                self._play()
                return
            if not self._seen[2]:
                self._seen = fixed, versions, True
                self._record()
                return
        else:
            self._play, self._seen = None, (fixed, versions, False)
        self._layer.forward(self._bottoms, self._tops)
        self._memory = [(blob._data, blob._data.buffer) for blob in (*self._bottoms, *self._tops)]

    def _is_where_it_was(self) -> bool:
        return all([storage.buffer is buffer for storage, buffer in self._memory])

    def _record(self) -> None:
        read = {id(blob._data) for blob in self._bottoms}
        play = None if any(id(blob._data) in read for blob in self._tops) else self._recording()
        if play is None:
            self._layer.forward(self._bottoms, self._tops)
            return
        tops = [blob._data.buffer[: blob.count] for blob in self._tops]
        written = list(map(zlib.crc32, tops))
        for top in tops:
            top.view(np.uint8)[...] = 255  # NaN of every type
        play()
        if list(map(zlib.crc32, tops)) == written:
            self._play = play
        else:
            self._layer.forward(self._bottoms, self._tops)

    def _recording(self) -> Callable[[], None] | None:
        """A forward pass as the engine has recorded it; None if the engine's routines did not do all of it.

        What they write is protected against NumPy meanwhile: that what it does to these values leaves them as they are,
        such as a factor for zeros, does not mean that it does so to others.
        """
        arrays = [blob.data for blob in (*self._bottoms, *self._tops, *self._parameters)]
        own = self._layer.own_memory()
        storages = [(storage, storage.buffer) for storage in (*(blob._data for blob in self._tops), *own)]
        arrays += [storage.buffer for storage in own]
        for storage, buffer in storages:
            protected = buffer.view()
            protected.flags.writeable = False
            storage.replace(protected)
        try:
            return self._engine.recorded(lambda: self._layer.forward(self._bottoms, self._tops), arrays)
        except ValueError:  # NumPy's, of what is protected
            return None
        finally:
            for storage, buffer in storages:
                storage.replace(buffer)
