"""`fcaffe compute_image_mean`: computes the mean image of a database, as Caffe's program of that name."""

from __future__ import annotations

import contextlib

import click

from fcaffe import log
from fcaffe.cli.flags import command, log_flags
from fcaffe.cli.progress import counted
from fcaffe.cli.usage import required
from fcaffe.data import open_database
from fcaffe.data.mean import images_of, mean_image, mean_to_blob
from fcaffe.output_files import check_output
from fcaffe.proto import write_binary
from fcaffe.proto.binary import BLOB


@command(
    example="compute_image_mean train_lmdb mean.binaryproto",
    help="Compute the mean image of the records of INPUT_DB, write it to OUTPUT_FILE if that is given, and print the "
    "mean of each channel.",
    flags=log_flags,
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
