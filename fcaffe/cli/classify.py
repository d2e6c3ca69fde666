"""`fcaffe classify`: classifies pictures, as python/classify.py of Caffe does."""

from __future__ import annotations

import glob
import os
import time

import click
import numpy as np

from fcaffe.cli.flags import command, numbers
from fcaffe.cli.pictures import PictureFlags, picture_flags
from fcaffe.cli.progress import counted
from fcaffe.errors import UsageError
from fcaffe.output_files import replacing
from fcaffe.pycaffe import io
from fcaffe.pycaffe.classifier import Classifier
from fcaffe.tools.numpy_files import load_numpy


@command(
    example="classify cat.jpg scores.npy --model_def deploy.prototxt --pretrained_model net.caffemodel",
    help="Write the scores of pictures to the file OUT (.npy), a row for each. IN is a picture, a folder of pictures, "
    "in the order of their names, or an array of pictures in [0, 1] (.npy, N x H x W x K).",
)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--center_only", "center_only", is_flag=True, help="Classify the centre alone, not ten crops.")
@click.option(
    "--images_dim", "images_dim", default="256,256", metavar="H,W", help="Resize pictures to this first (256,256)."
)
@click.option("--ext", default="jpg", metavar="EXT", help="Which files of a folder are pictures (jpg).")
@picture_flags
def classify(source: str, target: str, flags: PictureFlags, center_only: bool, images_dim: str, ext: str) -> int:
    dims = numbers("--images_dim", images_dim)
    if len(dims) != 2:
        raise UsageError(f"--images_dim takes a height and a width, not '{images_dim}'")
    classifier = flags.create(Classifier, flags.mean(), image_dims=dims)
    source = os.path.expanduser(source)
    pictures = _pictures(source, ext)
    print(f"Classifying {len(pictures)} inputs.")
    start = time.monotonic()
    batch = classifier.blobs[classifier.inputs[0]].shape[0]
    starts = range(0, len(pictures), batch)
    predictions = []
    for first in counted(starts, len(starts), "batches"):
        some = [io.load_image(one) if isinstance(one, str) else one for one in pictures[first : first + batch]]
        predictions.append(classifier.predict(some, not center_only))
    print(f"Done in {time.monotonic() - start:.2f} s.")
    print(f"Saving results into {target}")
    path = target if target.endswith(".npy") else f"{target}.npy"
    with replacing(path, "predictions") as temporary, open(temporary, "wb") as file:
        np.save(file, np.concatenate(predictions))
    return 0


def _pictures(source: str, ext: str) -> list[str] | np.ndarray:
    """Return the names of picture files, or the pictures of an array."""
    if os.path.isdir(source):
        print(f"Loading folder: {source}")
        names = sorted(glob.glob(os.path.join(glob.escape(source), f"*.{ext}")))
        if not names:
            raise UsageError(f"there is no *.{ext} in the folder {source}; --ext says what pictures' names end in")
        return names
    print(f"Loading file: {source}")
    if not source.endswith("npy"):
        return [source]
    pictures = load_numpy(source, "pictures in a .npy")
    if pictures.ndim != 4 or len(pictures) == 0:
        raise UsageError(f"{source} has the shape {pictures.shape}; pictures are N x height x width x channels")
    return pictures
