"""scripts/data/*: raw files to databases."""

import gzip
import io
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fcaffe.data import datum_to_array, open_database, parse_datum
from fcaffe.data.mean import read_mean

ROOT = Path(__file__).parents[2]
IMAGES = np.random.default_rng(5).integers(0, 256, (7, 28, 28), np.uint8)
LABELS = np.arange(7, dtype=np.uint8)


def script(name, *args, cwd):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, str(ROOT / "scripts" / "data" / name), *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def done(*args, **options):
    result = script(*args, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(words, *args, **options):
    result = script(*args, **options)
    assert result.returncode == 1
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("error: ") and words in message


def records(path):
    """[(key, image, label), ...]"""
    table = []
    for key, value in open_database(str(path)):
        datum = parse_datum(key, value)
        table.append((key.decode(), datum_to_array(datum, key), datum.label))
    return table


# --- digits -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    done("digits", "--out", folder, cwd=folder)
    return folder, records(folder / "digits_train_lmdb"), records(folder / "digits_test_lmdb")


def test_every_fifth_digit_is_held_out(digits):
    _, train, test = digits
    with np.load(ROOT / "fcaffe" / "samples" / "uci_digits" / "digits.npz") as stored:
        images, labels = stored["images"], stored["labels"]
    index = {image.tobytes(): number for number, image in enumerate(images)}
    assert len(index) == len(images) == 1797
    held_out = {index[image.tobytes()] for _, image, _ in test}
    assert held_out == set(range(0, 1797, 5))
    assert {index[image.tobytes()] for _, image, _ in train} == set(range(1797)) - held_out
    for key, image, label in train + test:
        assert image.shape == (1, 8, 8) and image.max() <= 16 and len(key) == 8
        assert label == labels[index[image.tobytes()]]


def test_digits_that_are_there_stay(digits):
    folder, train, _ = digits
    assert "there already" in done("digits", "--out", folder, cwd=folder)
    assert len(records(folder / "digits_train_lmdb")) == len(train)


def test_leveldb_and_its_copy(tmp_path):
    pytest.importorskip("plyvel", reason="the leveldb extra (plyvel) is not installed")
    done("digits", "--backend", "leveldb", "--out", ".", cwd=tmp_path)
    table = records(tmp_path / "digits_test_leveldb")
    assert len(table) == 360
    assert "there already" in done("digits", "--backend", "leveldb", "--out", ".", cwd=tmp_path)
    assert "360 records" in done("copy_database", "digits_test_leveldb", "copy", cwd=tmp_path)
    assert (tmp_path / "copy" / "data.mdb").is_file()
    assert [key for key, _, _ in records(tmp_path / "copy")] == [key for key, _, _ in table]
    refused("exists already", "copy_database", "digits_test_leveldb", "copy", cwd=tmp_path)


# --- mnist ------------------------------------------------------------------------------------------------------------


def write_mnist(folder, pack=lambda content: content, suffix=""):
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        header = struct.pack(">HBBIII", 0, 8, 3, *IMAGES.shape)
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(header + IMAGES.tobytes()))
        header = struct.pack(">HBBI", 0, 8, 1, len(LABELS))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(header + LABELS.tobytes()))


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")])
def test_mnist(tmp_path, pack, suffix):
    write_mnist(tmp_path / "raw", pack, suffix)
    assert "7 records" in done("mnist", "raw", "--out", "made", cwd=tmp_path)
    for part in ("train", "test"):
        table = records(tmp_path / "made" / f"mnist_{part}_lmdb")
        assert [key for key, _, _ in table] == [f"{index:08d}" for index in range(7)]
        assert np.array_equal(np.stack([image[0] for _, image, _ in table]), IMAGES)
        assert [label for _, _, label in table] == LABELS.tolist()
    refused("exists already", "mnist", "raw", "--out", "made", cwd=tmp_path)


def test_mnist_files_that_are_missing_or_do_not_match(tmp_path):
    refused("has neither train-images-idx3-ubyte", "mnist", "nowhere", "--out", "made", cwd=tmp_path)
    write_mnist(tmp_path / "raw")
    labels = struct.pack(">HBBI", 0, 8, 1, 3) + b"abc"
    (tmp_path / "raw" / "t10k-labels-idx1-ubyte").write_bytes(labels)
    refused("do not go together", "mnist", "raw", "--out", "made", "--part", "test", cwd=tmp_path)
    assert not (tmp_path / "made").exists()


# --- cifar10 ----------------------------------------------------------------------------------------------------------

PICTURES = np.random.default_rng(6).integers(0, 256, (6, 3, 32, 32), np.uint8)


def cifar_files():
    rows = [bytes([index]) + picture.tobytes() for index, picture in enumerate(PICTURES)]
    return {**{f"data_batch_{index + 1}.bin": rows[index] for index in range(5)}, "test_batch.bin": rows[5]}


@pytest.mark.parametrize("form", ["files", "folder", "archive"])
def test_cifar10(tmp_path, form):
    folder = tmp_path / "raw" / ("cifar-10-batches-bin" if form == "folder" else "")
    folder.mkdir(parents=True)
    if form == "archive":
        with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
            for name, content in cifar_files().items():
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    else:
        for name, content in cifar_files().items():
            (folder / name).write_bytes(content)
    done("cifar10", "raw", "--out", "made", cwd=tmp_path)
    train = records(tmp_path / "made" / "cifar10_train_lmdb")
    assert [(key, label) for key, _, label in train] == [(f"{index:05d}", index) for index in range(5)]
    assert np.array_equal(np.stack([image for _, image, _ in train]), PICTURES[:5])
    ((_, image, label),) = records(tmp_path / "made" / "cifar10_test_lmdb")
    assert label == 5 and np.array_equal(image, PICTURES[5])
    mean = read_mean(str(tmp_path / "made" / "mean.binaryproto"))
    assert np.array_equal(mean, PICTURES[:5].mean(axis=0).astype(np.float32))


def test_cifar10_files_that_are_missing_or_damaged(tmp_path):
    refused("has neither data_batch_1.bin nor cifar-10-binary.tar.gz", "cifar10", "raw", cwd=tmp_path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "cifar-10-binary.tar.gz").write_bytes(b"no archive")
    refused("cannot read cifar-10-batches-bin/data_batch_1.bin", "cifar10", "raw", cwd=tmp_path)
    (tmp_path / "raw" / "data_batch_1.bin").write_bytes(b"short")
    refused("has 5 bytes, not a multiple of 3073", "cifar10", "raw", cwd=tmp_path)
