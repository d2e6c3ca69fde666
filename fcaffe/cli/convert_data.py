"""Databases: the converters of Caffe's examples, of MNIST and CIFAR-10, and `compute_image_mean`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.flags import command, required
from fcaffe.cli.progress import counted
from fcaffe.data import open_database
from fcaffe.data.backends import write_database
from fcaffe.data.database import Record
from fcaffe.data.mean import images_of, mean_image, mean_to_blob
from fcaffe.data.raw_images import cifar_images, image_records, read_mnist
from fcaffe.errors import DataError
from fcaffe.input_files import read_input, reading
from fcaffe.output_files import check_output
from fcaffe.proto import write_binary
from fcaffe.proto.binary import BLOB
from fcaffe.rng import CaffeRandom

CIFAR_BATCH = 10_000  # records; keys of a later batch begin there


@command(
    example="convert_mnist_data train-images-idx3-ubyte train-labels-idx1-ubyte mnist_train_lmdb --backend=lmdb",
    help="Build the database DB_NAME from MNIST's files of images and labels, gzipped or not.",
)
@click.argument("words", nargs=-1, metavar="IMAGES LABELS DB_NAME")
@click.option("--backend", default="lmdb", metavar="KIND", help="Kind of database: lmdb or leveldb (lmdb).")
def convert_mnist_data(words: tuple[str, ...], backend: str) -> int:
    images_file, labels_file, database = required(words, 3)
    images, labels = read_mnist(images_file, labels_file)
    log.mnist_items(len(images), *images.shape[2:])
    log.mnist_processed(write_database(database, image_records(images, labels, 8), backend))
    return 0


@command(
    example="convert_mnist_siamese_data train-images-idx3-ubyte train-labels-idx1-ubyte mnist_siamese_train_leveldb",
    help="Build the LevelDB DB_NAME of random pairs from MNIST's files of images and labels, gzipped or not. A pair "
    "has one channel for each image, and the label 1 if both have the same label, else 0. There are as many pairs as "
    "images; they differ each time.",
)
@click.argument("words", nargs=-1, metavar="IMAGES LABELS DB_NAME")
def convert_mnist_siamese_data(words: tuple[str, ...]) -> int:
    images_file, labels_file, database = required(words, 3)
    images, labels = read_mnist(images_file, labels_file)
    log.siamese_items(len(images), *images.shape[2:])
    first, second = (CaffeRandom().draws(2 * len(images)) % len(images)).reshape(-1, 2).T
    pairs = np.concatenate([images[first], images[second]], axis=1)
    write_database(database, image_records(pairs, labels[first] == labels[second], 8), "leveldb")
    return 0


@command(
    example="convert_cifar_data data/cifar10 examples/cifar10 lmdb",
    help="Build the databases cifar10_train_DB_TYPE and cifar10_test_DB_TYPE in OUTPUT_FOLDER from the batches of "
    "CIFAR-10's binary version in INPUT_FOLDER. DB_TYPE is lmdb or leveldb.",
)
@click.argument("words", nargs=-1, metavar="INPUT_FOLDER OUTPUT_FOLDER DB_TYPE")
def convert_cifar_data(words: tuple[str, ...]) -> int:
    source, target, backend = required(words, 3)

    def records(names: Sequence[str]) -> Iterator[Record]:
        for number, name in enumerate(names):
            if len(names) > 1:
                log.cifar_batch(number + 1)
            path = os.path.join(source, name)
            with reading(path, DataError, "batch of CIFAR-10"):
                content = read_input(path)
            yield from image_records(*cifar_images(content, path), 5, number * CIFAR_BATCH)

    log.cifar_training()
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    write_database(os.path.join(target, f"cifar10_train_{backend}"), records(batches), backend)
    log.cifar_testing()
    write_database(os.path.join(target, f"cifar10_test_{backend}"), records(["test_batch.bin"]), backend)
    return 0


@command(
    example="compute_image_mean train_lmdb mean.binaryproto",
    help="Compute the mean image of the records of INPUT_DB, write it to OUTPUT_FILE if that is given, and print the "
    "mean of each channel.",
)
@click.argument("words", nargs=-1, metavar="INPUT_DB [OUTPUT_FILE]")
@click.option("--backend", default="", metavar="KIND", help="Kind of database: lmdb or leveldb (detected).")
def compute_image_mean(words: tuple[str, ...], backend: str) -> int:
    source, target = (*required(words, 1, 2), "")[:2]
    check_output(target, BLOB)
    with contextlib.closing(open_database(source)) as database:
        mean = mean_image(images_of(counted(database, database.entries, "records")))
    if target:
        log.writing_mean(target)
        write_binary(target, mean_to_blob(mean))
    log.channel_means([float(channel.mean(dtype=float)) for channel in mean])
    return 0
