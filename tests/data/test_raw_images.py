import gzip
import struct

import numpy as np
import pytest

from fcaffe.data.raw_images import read_idx
from fcaffe.errors import DataError
from tests.golden_data import GOLDEN

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
CONTENT = struct.pack(">HBBIII", 0, 8, 3, 2, 3, 4) + VALUES.tobytes()


def test_reads_plain_and_gzipped_files(tmp_path):
    (tmp_path / "plain").write_bytes(CONTENT)
    (tmp_path / "zipped").write_bytes(gzip.compress(CONTENT, mtime=0))
    assert np.array_equal(read_idx(tmp_path / "plain"), VALUES)
    assert np.array_equal(read_idx(tmp_path / "zipped"), VALUES)


def test_reads_the_mnist_files():
    assert read_idx(GOLDEN / "mnist" / "t10k-images-idx3-ubyte.gz").shape == (10000, 28, 28)
    labels = read_idx(GOLDEN / "mnist" / "t10k-labels-idx1-ubyte.gz")
    assert labels[:5].tolist() == [7, 2, 1, 0, 4]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an idx file"),
        (b"no idx file", "not an idx file"),
        (struct.pack(">HBBI", 0, 13, 1, 1) + b"abcd", "not an idx file of unsigned bytes"),
        (CONTENT[:-1], r"cut short or damaged: .* the shape \(2, 3, 4\)"),
        (CONTENT[:9], "cut short or damaged"),
        (CONTENT + b"x", "cut short or damaged"),
        (gzip.compress(CONTENT, mtime=0)[:-12], "cannot read"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, content, words):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_idx(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match="no/such/file"):
        read_idx("no/such/file")
