"""HDF5Data: rows of HDF5 files."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.data.hdf5 import Hdf5Rows
from fcaffe.data.prefetch import check_batches
from fcaffe.errors import DataError
from fcaffe.layers.data import Reader, reading_errors
from fcaffe.net import Blob, register


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
            self.take_share(p.batch_size, top)
            check_batches([(self.share.total, *shape) for shape in self.rows.row_shapes])
        self._reshape(top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        with self.samples(self.share):
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

    def reader_state(self) -> tuple[int, bytes]:
        """(rows read since the first, seed of the shuffles)."""
        return self.rows.position, b"%d" % self.rows.seed if self.rows.shuffle else b""

    def set_reader_state(self, position: int, random: bytes) -> None:
        """Go on from a `reader_state`."""
        with reading_errors(self):
            if self.rows.shuffle:
                if not random.isdigit():
                    raise DataError("the snapshot is of a layer without shuffle")
                self.rows.seed = int(random)
            self.rows.seek(position)
