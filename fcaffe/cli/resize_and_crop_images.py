"""`fcaffe resize_and_crop_images`: resizes and crops pictures to squares, as Caffe's tools/extra does."""

from __future__ import annotations

import click

from fcaffe.cli.flags import command
from fcaffe.cli.progress import counted
from fcaffe.data.batches import decoding_threads
from fcaffe.data.image_list import read_image_list
from fcaffe.errors import UsageError
from fcaffe.tools.image_sets import crop_images


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
    threads = num_clients if num_clients > 0 else decoding_threads()
    done = crop_images(names, input_folder, output_folder, output_side_length, threads)
    written = sum(counted(done, len(names), "pictures"))
    skipped = len(names) - written
    print(f"{output_folder}: {written} pictures" + (f", {skipped} could not be read" if skipped else ""))
    return 0
