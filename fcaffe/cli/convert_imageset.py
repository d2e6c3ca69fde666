"""Commands on lists of pictures: `convert_imageset` and SSD's `convert_annoset` build databases.

`resize_and_crop_images` writes squares, as Caffe's tools/extra does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from fcaffe import log
from fcaffe.cli.flags import OWN, Decorator, command, required, with_options
from fcaffe.cli.progress import counted
from fcaffe.cli.table import say
from fcaffe.data.backends import write_database
from fcaffe.data.batches import decoding_threads
from fcaffe.data.image_list import ListedImage, read_image_list, read_pair_list
from fcaffe.errors import UsageError
from fcaffe.output_files import PICTURE, check_output
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom
from fcaffe.tools.image_sets import READERS, PictureForm, annotated_record, crop_images, labels_by_name, picture_records

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


@command(
    example="convert_imageset --shuffle --resize_height=256 --resize_width=256 images/ list.txt train_lmdb",
    help="Build the database DB_NAME from the pictures of LISTFILE. Each of its lines is a path and a label, with "
    "a blank between; the path is appended to ROOTFOLDER/ as it is.",
)
@click.argument("words", nargs=-1, metavar="ROOTFOLDER/ LISTFILE DB_NAME")
@click.option("--label_size", default=1, metavar="N", help="Number of labels of each line (1).")
@with_options(OPTIONS, OWN)
def convert_imageset(words: tuple[str, ...], label_size: int, **options: Any) -> int:
    root, list_file, database = required(words, 3)
    build_database(database, root, read_image_list(list_file, label_size), **options)
    return 0


def build_database(
    path: str,
    root: str,
    images: list[ListedImage],
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
    write_database(path, counted(records, len(images), "pictures"), backend)


KINDS = ["classification", "detection"]


@command(
    example="convert_annoset --anno_type=detection --label_map_file=labelmap_voc.prototxt --encoded data/ list.txt db",
    help="Build the database DB_NAME of AnnotatedDatum records from the pictures of LISTFILE. Each of its lines is the "
    "path of a picture, a blank, and the path of its annotation (--anno_type=detection) or a label. The paths are "
    "appended to ROOTFOLDER/ as they are.",
)
@click.argument("words", nargs=-1, metavar="ROOTFOLDER/ LISTFILE DB_NAME")
@click.option("--anno_type", type=click.Choice(KINDS), default=KINDS[0], help="Kind of annotation (classification).")
@click.option("--label_type", type=click.Choice(list(READERS)), default="xml", help="Kind of annotation files (xml).")
@click.option("--label_map_file", default="", metavar="FILE", help="LabelMap with the names of the classes.")
@click.option("--check_label", is_flag=True, help="Refuse a label map that repeats a name.")
@click.option("--min_dim", default=0, metavar="N", help="Least length of the shorter side; the aspect ratio stays.")
@click.option("--max_dim", default=0, metavar="N", help="Largest length of the longer side; the aspect ratio stays.")
@with_options(OPTIONS, OWN)
def convert_annoset(
    words: tuple[str, ...], anno_type: str, label_type: str, label_map_file: str, check_label: bool, **options: Any
) -> int:
    root, list_file, database = required(words, 3)
    record: Callable[[Any, Any, int, int], Any]
    if anno_type == "detection":
        if not label_map_file and label_type != "txt":
            raise UsageError("--anno_type=detection needs --label_map_file=FILE, with the names of the classes")
        labels = labels_by_name(label_map_file, check_label) if label_map_file else None
        images = read_pair_list(list_file)
        record = annotated_record(root, READERS[label_type], labels if label_type != "txt" else None)
    else:
        images = read_image_list(list_file)

        def record(datum: Any, *_: Any) -> Any:
            return pb.AnnotatedDatum(datum=datum)

    build_database(database, root, images, record=record, **options)
    return 0


@command(
    example="resize_and_crop_images --input=list.txt --input_folder=images/ --output_folder=resized/",
    help="Resize the shorter edge of each picture to --output_side_length, crop the central square, and write it to "
    "the same path in --output_folder.",
)
@click.option("--input", default="", metavar="FILE", help="A list: on each line a path within --input_folder.")
@click.option("--input_folder", default="", metavar="FOLDER", help="Folder of the pictures.")
@click.option("--output_folder", default="", metavar="FOLDER", help="Folder for the new pictures.")
@click.option("--output_side_length", default=256, metavar="N", help="Height and width of the new pictures (256).")
@click.option("--image_lib", default="opencv", metavar="NAME", help="Only opencv (opencv).")
@click.option("--num_clients", default=0, metavar="N", help="Pictures at a time (as many as there are CPUs).")
def resize_and_crop_images(
    input: str, input_folder: str, output_folder: str, output_side_length: int, image_lib: str, num_clients: int
) -> int:
    if not (input and input_folder and output_folder):
        raise UsageError("resize_and_crop_images needs --input, --input_folder and --output_folder")
    if image_lib.lower() != "opencv":
        raise UsageError(f"--image_lib={image_lib} is not available: leave it out, or give opencv")
    if output_side_length < 1:
        raise UsageError(f"--output_side_length must be 1 or more, not {output_side_length}")
    names = [image.path.removeprefix(input_folder).lstrip("/") for image in read_image_list(input)]
    for name in names:
        target = os.path.join(output_folder, name)
        check_output(target, PICTURE, os.path.join(input_folder, name))
    threads = num_clients if num_clients > 0 else decoding_threads()
    done = crop_images(names, input_folder, output_folder, output_side_length, threads)
    written = sum(counted(done, len(names), "pictures"))
    skipped = len(names) - written
    say(f"{output_folder}: {written} pictures" + (f", {skipped} could not be read" if skipped else ""))
    return 0
