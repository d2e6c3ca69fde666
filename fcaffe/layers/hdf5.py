"""HDF5Data and HDF5Output: batches from HDF5 files, and blobs into one."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from fcaffe import log
from fcaffe.data.hdf5 import Hdf5Rows, write_rows
from fcaffe.data.prefetch import check_batches
from fcaffe.errors import DataError
from fcaffe.hdf5 import h5py
from fcaffe.layers.data import Reader, reading_errors, state_of
from fcaffe.net import ALL_BOTTOMS, Blob, Layer, Traits, register
from fcaffe.net.layer import State


@register("HDF5Data")
class HDF5Data(Reader):
    """Reads rows of the files in a list: each top has batch_size rows of the dataset of its name.

    A batch runs over the ends of files. Data of any type of number becomes float32. As in Caffe nothing is
    transformed, nothing drawn from the run's random stream, and a file is read as a whole when its turn comes.
    """

    traits = replace(Reader.traits, bottoms=0, tops=(1, None), reads_host=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.hdf5_data_param
        if self.param.HasField("transform_param"):
            raise self.error("does not transform data: take transform_param away")
        if p.batch_size < 1:
            raise self.error("hdf5_data_param.batch_size must be positive")
        with reading_errors(self):
            self.rows = Hdf5Rows(p.source, list(self.param.top), p.shuffle, self.context.seed)
            self.find_share(p.batch_size, top)
            check_batches([(self.share.total, *shape) for shape in self.rows.row_shapes])
        self._reshape(top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        with self.samples():
            rows = self._reshape(top)
            for blob, array in zip(top, self._batch, strict=True):
                self.engine.upload(array[rows], blob.data).wait()

    def _reshape(self, top: list[Blob]) -> slice:
        """Give the tops the shapes of this pass; returns its rows in this worker's share."""
        rows = self.workers.rows(self.share)
        for blob, shape in zip(top, self.rows.row_shapes, strict=True):
            blob.reshape(rows.stop - rows.start, *shape)
        return rows

    def read_batch(self) -> None:
        share, turns = self.share, self.context.turns
        with reading_errors(self):
            self._skip_batches(turns.skipped_before(self.rows.position // share.total))
            number = self.rows.position // share.total
            arrays = self.rows.read(share.total)
            self._skip_batches(turns.skipped_after(number))
        self._batch = [array[share.first : share.first + share.count] for array in arrays]

    def _skip_batches(self, number: int) -> None:
        if number:
            self.rows.seek(self.rows.position + number * self.share.total)

    def state(self) -> State:
        return state_of(self.rows.position, b"%d" % self.rows.seed if self.rows.shuffle else b"")  # of the shuffles

    def restore_state(self, state: State) -> None:
        position, random = int(state["position"]), state["random"].tobytes()
        with reading_errors(self):
            if self.rows.shuffle:
                if not random.isdigit():
                    raise DataError("the snapshot is of a layer without shuffle")
                self.rows.seed = int(random)
            self.rows.seek(position)


@register("HDF5Output")
class HDF5Output(Layer):
    """Writes its bottoms as the datasets `data` and `label` of a file, each with four axes.

    As in Caffe a file holds one pass; a second one is an error. The file appears with the pass, complete.
    """

    traits = Traits(bottoms=2, tops=0, needs_host=True, constants=ALL_BOTTOMS)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.path = self.param.hdf5_output_param.file_name
        self.written = False
        with reading_errors(self):
            h5py()  # say at once if it is missing
            folder = os.path.dirname(self.path) or "."
            if not self.path or not os.access(folder, os.W_OK):
                problem = f"{folder} may not be written" if os.path.isdir(folder) else f"there is no folder {folder}"
                raise DataError(f'cannot write hdf5_output_param.file_name "{self.path}": {problem}')

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if any(len(blob.shape) > 4 for blob in bottom) or bottom[0].num != bottom[1].num:
            raise self.error(
                f"needs bottoms of at most four axes and equally many samples: {self.named_shapes(bottom)}"
            )

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.write_once(
            [
                self.engine.to_numpy(blob.data).reshape(blob.num, blob.channels, blob.height, blob.width)
                for blob in bottom
            ]
        )

    def write(self, everyones: list[list[np.ndarray]]) -> None:
        if self.written:
            raise self.error(f'"{self.path}" holds the first pass already, and a file takes one: run one pass only')
        log.saving_hdf5(self.path)
        data, label = map(np.concatenate, zip(*everyones, strict=True))
        with reading_errors(self):
            write_rows(self.path, {"data": data, "label": label})
        self.written = True
        log.saved_hdf5(len(data))
