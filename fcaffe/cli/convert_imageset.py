"""`fcaffe convert_imageset`: builds a database from a list of pictures, as Caffe's program of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fcaffe import log
from fcaffe.cli import usage
from fcaffe.cli.flags import Decorator, log_flags, with_options
from fcaffe.cli.progress import counted
from fcaffe.cli.usage import Command, required
from fcaffe.data.backends import new_database
from fcaffe.data.image_list import read_image_list
from fcaffe.rng import CaffeRandom
from fcaffe.tools.image_sets import PictureForm, picture_records

OPTIONS: list[Decorator] = [
    click.option("--shuffle", is_flag=True, help="In random order, which differs each time."),
    click.option("--resize_width", default=0, metavar="N", help="Width to resize every picture to (its own)."),
    click.option("--resize_height", default=0, metavar="N", help="Height to resize every picture to (its own)."),
    click.option("--gray", is_flag=True, help="One channel, of grey values, instead of blue, green and red."),
    click.option("--backend", default="lmdb", metavar="KIND", help="Kind of database: lmdb or leveldb (lmdb)."),
    click.option("--check_size", is_flag=True, help="Refuse pictures that differ in size."),
    click.option("--encoded", is_flag=True, help="Store picture files (PNG, JPEG), not pixels."),
    click.option("--encode_type", default="", metavar="KIND", help="Kind of these files, such as jpg (as they are)."),
]


@click.command(
    "convert_imageset",
    cls=Command,
    example="convert_imageset --shuffle --resize_height=256 --resize_width=256 images/ list.txt train_lmdb",
    help="Build the database DB_NAME from the pictures of LISTFILE. Each of its lines is a path, a blank and a label; "
    "the path is appended to ROOTFOLDER/ as it is.",
)
@click.argument("words", nargs=-1, metavar="ROOTFOLDER/ LISTFILE DB_NAME")
@with_options(OPTIONS, usage.OWN)
@log_flags
def convert_imageset(words: tuple[str, ...], **options: Any) -> int:
    root, list_file, database = required(words, 3)
    build_database(database, root, read_image_list(list_file), **options)
    return 0


def build_database(
    path: str,
    root: str,
    images: list[Any],
    shuffle: bool,
    backend: str,
    check_size: bool,
    record: Callable[..., Any] = lambda datum, *_: datum,
    **form: Any,
) -> None:
    """Write the records of pictures; `record` as in `picture_records`, and `form` has the fields of PictureForm."""
    if shuffle:
        log.shuffling_list()
        CaffeRandom().shuffle(images)
    log.listed_images(len(images))
    if form["encode_type"] and not form["encoded"]:
        log.assuming_encoded()
    if (form["resize_width"] > 0) != (form["resize_height"] > 0):
        log.warning("pictures keep their sizes: give both --resize_width and --resize_height, or neither")
    records = picture_records(root, images, PictureForm(**form), check_size, record)
    with new_database(path, backend) as writer:
        for one in counted(records, len(images), "pictures"):
            writer.put(*one)
