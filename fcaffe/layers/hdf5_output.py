"""HDF5Output: blobs into an HDF5 file."""

from __future__ import annotations

import os

from fcaffe import log
from fcaffe.data.hdf5 import write_rows
from fcaffe.errors import DataError
from fcaffe.hdf5.reading import h5py
from fcaffe.layers.data import reading_errors
from fcaffe.net import ALL_BOTTOMS, Blob, Layer, Traits, register


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
        if self.written:
            raise self.error(f'"{self.path}" holds the first pass already, and a file takes one: run one pass only')
        log.saving_hdf5(self.path)
        arrays = {
            name: self.engine.to_numpy(blob.data).reshape(blob.num, blob.channels, blob.height, blob.width)
            for name, blob in zip(("data", "label"), bottom, strict=True)
        }
        try:
            write_rows(self.path, arrays)
        except DataError as problem:
            raise self.error(str(problem)) from problem
        self.written = True
        log.saved_hdf5(bottom[0].num)
