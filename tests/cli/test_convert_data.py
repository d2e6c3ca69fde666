"""The scripts of BVLC Caffe's examples that build databases, unchanged, and the converters that they call."""

from __future__ import annotations

import gzip
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fcaffe.proto import caffe_pb2 as pb
from tests.cli.conftest import Run, records

pytestmark = pytest.mark.usefixtures("in_a_folder")

# The commands of examples/mnist/create_mnist.sh and cifar10/create_cifar10.sh.
CREATE_MNIST = """set -e
EXAMPLE=examples/mnist
DATA=data/mnist
BUILD=build/examples/mnist
BACKEND="lmdb"
rm -rf $EXAMPLE/mnist_train_${BACKEND}
rm -rf $EXAMPLE/mnist_test_${BACKEND}
$BUILD/convert_mnist_data.bin $DATA/train-images-idx3-ubyte \\
  $DATA/train-labels-idx1-ubyte $EXAMPLE/mnist_train_${BACKEND} --backend=${BACKEND}
$BUILD/convert_mnist_data.bin $DATA/t10k-images-idx3-ubyte \\
  $DATA/t10k-labels-idx1-ubyte $EXAMPLE/mnist_test_${BACKEND} --backend=${BACKEND}
"""
CREATE_CIFAR10 = """set -e
EXAMPLE=examples/cifar10
DATA=data/cifar10
DBTYPE=lmdb
rm -rf $EXAMPLE/cifar10_train_$DBTYPE $EXAMPLE/cifar10_test_$DBTYPE
./build/examples/cifar10/convert_cifar_data.bin $DATA $EXAMPLE $DBTYPE
./build/tools/compute_image_mean -backend=$DBTYPE \\
  $EXAMPLE/cifar10_train_$DBTYPE $EXAMPLE/mean.binaryproto
"""
COUNTS = {"train": 7, "t10k": 3}


@pytest.fixture
def mnist(in_a_folder: None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes data/mnist with small files, and returns their images and labels."""
    os.makedirs("data/mnist")
    random, parts = np.random.default_rng(0), {}
    for name, count in COUNTS.items():
        images = random.integers(0, 256, (count, 4, 5), np.uint8)
        labels = random.integers(0, 10, count, np.uint8)
        Path(f"data/mnist/{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, count, 4, 5) + images.tobytes()
        )
        Path(f"data/mnist/{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
        parts[name] = images, labels
    return parts


def write_cifar() -> list[np.ndarray]:
    """Writes data/cifar10 with small batches of so many records: 10,000 in the first, as in the original, then a few.

    Returns the rows of each batch, the test batch last."""
    os.makedirs("data/cifar10")
    random = np.random.default_rng(0)
    batches = [random.integers(0, 256, (count, 3073), np.uint8) for count in (10_000, 2, 2, 2, 1, 3)]
    for name, rows in zip([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], batches, strict=True):
        rows[:, 0] %= 10
        Path(f"data/cifar10/{name}.bin").write_bytes(rows.tobytes())
    return batches


def run_script(text: str, example: str) -> str:
    """Run a script in a tree like Caffe's, in which fcaffe has the names of build/; returns its log."""
    for folder in (f"build/examples/{example}", "build/tools", f"examples/{example}"):
        os.makedirs(folder)
    program = Path("build/program")
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom fcaffe.__main__ import main\nsys.exit(main())\n")
    program.chmod(0o755)
    for path in re.findall(r"(convert_\w+\.bin|compute_image_mean)", text):
        folder = "tools" if path == "compute_image_mean" else f"examples/{example}"
        link = Path("build", folder, path)
        if not link.exists():
            link.symlink_to(program.absolute())
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_create_mnist(mnist: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    log = run_script(CREATE_MNIST, "mnist")
    for line in ("convert_mnist_data.cpp:88] A total of 7 items.", "convert_mnist_data.cpp:89] Rows: 4 Cols: 5"):
        assert line in log
    assert "convert_mnist_data.cpp:108] Processed 3 files." in log
    for part, name in (("train", "train"), ("test", "t10k")):
        expected = [
            (b"%08d" % n, pb.Datum(channels=1, height=4, width=5, data=image.tobytes(), label=label))
            for n, (image, label) in enumerate(zip(*mnist[name], strict=True))
        ]
        found = records(f"examples/mnist/mnist_{part}_lmdb")
        assert found == [(key, datum.SerializeToString()) for key, datum in expected]


def test_create_cifar10() -> None:
    batches = write_cifar()
    log = run_script(CREATE_CIFAR10, "cifar10")
    for line in ("52] Writing Training data", "55] Training Batch 5", "73] Writing Testing data"):
        assert f"convert_cifar_data.cpp:{line}" in log
    for part, chosen in (("train", batches[:5]), ("test", batches[5:])):
        expected = [
            (b"%05d" % (10_000 * number + index), row)
            for number, rows in enumerate(chosen)
            for index, row in enumerate(rows)
        ]
        found = records(f"examples/cifar10/cifar10_{part}_lmdb")
        assert [key for key, _ in found] == [key for key, _ in expected]
        for (_, value), (_, row) in list(zip(found, expected, strict=True))[-12:]:
            datum = pb.Datum(channels=3, height=32, width=32, data=row[1:].tobytes(), label=row[0])
            assert value == datum.SerializeToString()
    assert Path("examples/cifar10/mean.binaryproto").stat().st_size > 4 * 3072


def test_pairs_of_mnist(mnist: dict[str, tuple[np.ndarray, np.ndarray]], run: Run) -> None:
    pytest.importorskip("plyvel")
    files = [f"data/mnist/train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    assert (
        "convert_mnist_siamese_data.cpp:85] A total of 7 items." in run("convert_mnist_siamese_data", *files, "db").err
    )
    label_of = {image.tobytes(): label for image, label in zip(*mnist["train"], strict=True)}
    found = records("db")
    assert Path("db/CURRENT").exists() and [key for key, _ in found] == [b"%08d" % n for n in range(COUNTS["train"])]
    for _, value in found:
        datum = pb.Datum.FromString(value)
        assert (datum.channels, datum.height, datum.width) == (2, 4, 5)
        assert datum.label == (label_of[datum.data[:20]] == label_of[datum.data[20:]])


def test_gzipped_files_and_other_databases(mnist: dict[str, tuple[np.ndarray, np.ndarray]], run: Run) -> None:
    pytest.importorskip("plyvel")
    for path in list(Path("data/mnist").iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    files = [f"data/mnist/t10k-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    assert run("convert_mnist_data", *files, "plain").code == 0
    assert run("convert_mnist_data", *(f"{file}.gz" for file in files), "zipped", "--backend=leveldb").code == 0
    assert records("plain") == records("zipped")


def test_mistakes(mnist: dict[str, tuple[np.ndarray, np.ndarray]], run: Run) -> None:
    images, labels = (f"data/mnist/train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    assert "do not go together" in run("convert_mnist_data", images, "data/mnist/t10k-labels-idx1-ubyte", "db").fatal
    assert "do not go together" in run("convert_mnist_data", labels, images, "db").fatal
    assert "none" in run("convert_mnist_siamese_data", "none", labels, "db").fatal
    assert 'unknown kind of database "hdf5"' in run("convert_mnist_data", images, labels, "db", "--backend=hdf5").fatal
    assert "data_batch_1.bin does not exist" in run("convert_cifar_data data . lmdb").fatal
    assert not Path("db").exists() and not Path("cifar10_train_lmdb").exists()
    for tool in ("convert_mnist_data", "convert_mnist_siamese_data", "convert_cifar_data"):
        done = run(tool, "one", "two")
        assert done.code == 1 and done.out.startswith("Usage: fcaffe ")
