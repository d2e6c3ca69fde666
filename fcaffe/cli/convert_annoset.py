"""`fcaffe convert_annoset`: builds a database of annotated pictures, as SSD's program of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fcaffe.cli import usage
from fcaffe.cli.convert_imageset import OPTIONS, build_database
from fcaffe.cli.flags import log_flags, with_options
from fcaffe.cli.usage import Command, required
from fcaffe.data.image_list import read_image_list
from fcaffe.errors import UsageError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.annotation_sets import READERS, annotated_record, labels_by_name, read_pairs

KINDS = ["classification", "detection"]


@click.command(
    "convert_annoset",
    cls=Command,
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
@with_options(OPTIONS, usage.OWN)
@log_flags
def convert_annoset(
    words: tuple[str, ...],
    anno_type: str,
    label_type: str,
    label_map_file: str,
    check_label: bool,
    **options: Any,
) -> int:
    root, list_file, database = required(words, 3)
    record: Callable[[Any, Any, int, int], Any]
    if anno_type == "detection":
        if not label_map_file and label_type != "txt":
            raise UsageError("--anno_type=detection needs --label_map_file=FILE, with the names of the classes")
        labels = labels_by_name(label_map_file, check_label) if label_map_file else None
        images: Any = read_pairs(list_file)
        record = annotated_record(root, READERS[label_type], labels if label_type != "txt" else None)
    else:
        images = read_image_list(list_file)

        def record(datum: Any, *_: Any) -> Any:
            return pb.AnnotatedDatum(datum=datum)

    build_database(database, root, images, record=record, **options)
    return 0
