"""`fcaffe classify` and `fcaffe detect`: score pictures or windows of them, as programs in Caffe's python folder do."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import numpy as np

from fcaffe.cli.flags import MEAN, MODEL, OWN, SCALE, WEIGHTS, command, flag, numbers, with_flags
from fcaffe.cli.progress import counted
from fcaffe.cli.table import say
from fcaffe.data.form import labels_beside, read_labels
from fcaffe.errors import UsageError
from fcaffe.input_files import read_input, reading
from fcaffe.onnx.writing.preprocessing import read_mean
from fcaffe.output_files import ARRAY, HDF5, check_output, replacing, starting
from fcaffe.pycaffe import session
from fcaffe.pycaffe.classifier import Classifier
from fcaffe.pycaffe.detector import Detector
from fcaffe.pycaffe.io import load_image
from fcaffe.tools.numpy_files import load_numpy

REFERENCE = "models/bvlc_reference_caffenet/"  # in the folder of Caffe's sources
CAFFES_MEAN = "python/caffe/imagenet/ilsvrc_2012_mean.npy"
BEST = 5  # classes that are printed
CROP_MODES = ["list", "selective_search"]
EDGES = ["ymin", "xmin", "ymax", "xmax"]
SCORES = starting("table of scores (.csv)", b"filename,ymin,xmin,ymax,xmax")

Made = TypeVar("Made")
Windows = list[tuple[str, list[np.ndarray]]]


@dataclass(frozen=True)
class PictureFlags:
    """The net, and the preprocessing of its images."""

    model_def: str = flag("FILE", "Prototxt of the net.", *MODEL, default=f"{REFERENCE}deploy.prototxt")
    pretrained_model: str = flag(
        "FILE", "The net's weights.", *WEIGHTS, default=f"{REFERENCE}bvlc_reference_caffenet.caffemodel"
    )
    gpu: bool = flag(None, "Compute on the GPU.", default=False)
    mean_file: str = flag(
        "X,...|FILE",
        "The mean to subtract: a value for each channel, or a .npy or .binaryproto; '' for none.",
        *MEAN,
        default=CAFFES_MEAN,
    )
    input_scale: float | None = flag(
        "X", "Multiply by this after the mean is subtracted.", *SCALE, default=None, type=float
    )
    raw_scale: float = flag(
        "X", "Multiply values in [0, 1] by this before the mean is subtracted (255).", default=255.0
    )
    channel_swap: str = flag(
        "K,...", "Order of the channels in the net; 2,1,0 makes BGR of RGB (2,1,0); '' leaves them.", default="2,1,0"
    )

    def mean(self) -> np.ndarray | None:
        if not self.mean_file:
            return None
        if self.mean_file == CAFFES_MEAN and not os.path.exists(CAFFES_MEAN):
            raise UsageError(f"give --mean_file FILE, or '' for none: the default, Caffe's {CAFFES_MEAN}, is not here")
        return read_mean(self.mean_file)

    def labels(self) -> list[str]:
        """The names of the classes, from the labels.txt beside the mean or the net; [] without one."""
        return labels_beside(self.mean_file) or labels_beside(self.model_def)

    def create(self, kind: Callable[..., Made], mean: np.ndarray | None, **settings: Any) -> Made:
        """Create a Classifier or Detector, on the CPU or, with --gpu, on the first GPU."""
        channels = numbers("--channel_swap", self.channel_swap, least=0) if self.channel_swap else None
        (session.set_mode_gpu if self.gpu else session.set_mode_cpu)()
        say("GPU mode" if self.gpu else "CPU mode")
        scales = {"input_scale": self.input_scale, "raw_scale": self.raw_scale}
        return kind(self.model_def, self.pretrained_model, mean=mean, channel_swap=channels, **scales, **settings)


picture_flags = with_flags("flags", PictureFlags, OWN)


@command(
    example="classify cat.jpg scores.npy --model deploy.prototxt --weights net.caffemodel --mean mean.binaryproto",
    help="Write the scores of pictures to the file OUT (.npy), a row for each. IN is a picture, a folder of pictures, "
    "in the order of their names, or an array of pictures in [0, 1] (.npy, N x H x W x K). If there are names of the "
    "classes, the best ones are printed.",
)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--center_only", is_flag=True, help="Classify the centre alone, not ten crops.")
@click.option("--images_dim", default="256,256", metavar="H,W", help="Resize pictures to this first (256,256).")
@click.option("--ext", default="jpg", metavar="EXT", help="Which files of a folder are pictures (jpg, also JPG).")
@click.option("--labels", default="", metavar="FILE", help="Names of the classes (labels.txt beside mean or net).")
@picture_flags
def classify(
    source: str, target: str, flags: PictureFlags, center_only: bool, images_dim: str, ext: str, labels: str
) -> int:
    dims = numbers("--images_dim", images_dim)
    if len(dims) != 2:
        raise UsageError(f"--images_dim takes a height and a width, not '{images_dim}'")
    source = os.path.expanduser(source)
    path = target if target.endswith(".npy") else f"{target}.npy"
    check_output(path, ARRAY, source, flags.mean_file)
    classifier = flags.create(Classifier, flags.mean(), image_dims=dims)
    pictures = _pictures(source, ext)
    say(f"Classifying {len(pictures)} inputs.")
    start = time.monotonic()
    batch = classifier.blobs[classifier.inputs[0]].shape[0]
    starts = range(0, len(pictures), batch)
    predictions = []
    for first in counted(starts, len(starts), "batches"):
        some = [load_image(one) if isinstance(one, str) else one for one in pictures[first : first + batch]]
        predictions.append(classifier.predict(some, not center_only))
    say(f"Done in {time.monotonic() - start:.2f} s.")
    say(f"Saving results into {target}")
    scores = np.concatenate(predictions)
    with replacing(path, "predictions") as temporary, open(temporary, "wb") as file:
        np.save(file, scores)
    names = read_labels(labels) if labels else flags.labels()
    for index, row in enumerate(scores.reshape(len(scores), -1) if names else ()):
        best = [number for number in np.argsort(-row, kind="stable")[:BEST] if number < len(names)]
        picture = pictures[index] if isinstance(pictures[index], str) else f"picture {index}"
        say(f"{picture}  {'  '.join(f'{names[number]} {row[number]:.4f}' for number in best)}")
    return 0


def _pictures(source: str, ext: str) -> list[str] | np.ndarray:
    """Return the names of picture files, or the pictures of an array."""
    if os.path.isdir(source):
        say(f"Loading folder: {source}")
        inner = (os.path.join(source, name) for name in os.listdir(source) if not name.startswith("."))
        names = sorted(path for path in inner if path.lower().endswith(f".{ext.lower()}"))
        if not names:
            raise UsageError(f"there is no *.{ext} in the folder {source}; --ext says what pictures' names end in")
        return names
    say(f"Loading file: {source}")
    if not source.endswith("npy"):
        return [source]
    pictures = load_numpy(source, "pictures in a .npy")
    if pictures.ndim != 4 or len(pictures) == 0:
        raise UsageError(f"{source} has the shape {pictures.shape}; pictures are N x height x width x channels")
    return pictures


@command(
    example="detect windows.csv scores.csv --crop_mode list --model_def net.prototxt --pretrained_model net.caffemodel",
    help="Write the scores of windows of pictures to the file OUT: a .csv, or else a pandas DataFrame in HDF5. IN "
    "is, with --crop_mode list, a .csv whose first line names the columns filename, ymin, xmin, ymax and xmax; with "
    "selective_search, a .txt with the name of a picture on each line. Nets whose output is boxes (SSD, YOLO) run by "
    "detect-objects.",
)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option(
    "--crop_mode",
    type=click.Choice(CROP_MODES),
    default="selective_search",
    help="Source of the windows (selective_search, which needs MATLAB).",
)
@click.option(
    "--context_pad",
    default=16,
    metavar="N",
    help="Pixels of context around the window, at each border of the net's input (16).",
)
@picture_flags
def detect(source: str, target: str, flags: PictureFlags, crop_mode: str, context_pad: int) -> int:
    if not target.lower().endswith("csv") and None in map(importlib.util.find_spec, ("pandas", "tables")):
        raise UsageError(
            f"to write {target} as HDF5 needs pandas and PyTables: pip install pandas tables; or name a .csv"
        )
    check_output(target, SCORES if target.lower().endswith("csv") else HDF5, source)
    mean = flags.mean()
    if mean is not None:
        mean = mean.mean(1).mean(1) if mean.ndim == 3 else mean.ravel()
    detector = flags.create(Detector, mean, context_pad=context_pad)
    start = time.monotonic()
    say("Loading input...")
    if crop_mode == "list":
        windows = _read_windows(source)
        pictures = counted(windows, len(windows), "pictures")
        detections = [found for one in pictures for found in detector.detect_windows([one])]
    else:
        lines = _text(source, "txt", "selective_search").splitlines()
        detections = detector.detect_selective_search([line.strip() for line in lines if line.strip()])
    say(f"Processed {len(detections)} windows in {time.monotonic() - start:.3f} s.")
    start = time.monotonic()
    if target.lower().endswith("csv"):
        _write_csv(target, detections)
    else:
        _write_hdf5(target, detections)
    say(f"Saved to {target} in {time.monotonic() - start:.3f} s.")
    return 0


def _text(path: str, extension: str, mode: str) -> str:
    if not path.lower().endswith(extension):
        raise UsageError(f"{path}: with --crop_mode {mode} the input is a .{extension}")
    with reading(path, UsageError, "list"):
        return read_input(path).decode("utf-8-sig", "surrogateescape")


def _read_windows(path: str) -> Windows:
    """Return the windows of each picture, in the order of the pictures' first lines."""
    rows = csv.DictReader(io.StringIO(_text(path, "csv", "list")), skipinitialspace=True)
    rows.fieldnames = [name.strip() for name in rows.fieldnames or []]
    if missing := {"filename", *EDGES} - set(rows.fieldnames):
        raise UsageError(f"{path}: its first line names no column {', '.join(sorted(missing))}")
    windows: dict[str, list[np.ndarray]] = {}
    for named in rows:
        try:
            window = np.array([int(float(named[edge])) for edge in EDGES])
        except (TypeError, ValueError, OverflowError) as problem:
            raise UsageError(f"{path}:{rows.line_num}: a window is four numbers: {', '.join(EDGES)}") from problem
        windows.setdefault(named["filename"], []).append(window)
    return list(windows.items())


def _write_csv(path: str, detections: list[dict[str, Any]]) -> None:
    """Write a line for each window: the picture, the window and the scores."""
    with replacing(path, "detections") as temporary, open(temporary, "w", newline="", errors="surrogateescape") as file:
        rows = csv.writer(file, lineterminator="\n")
        values = [np.ravel(found["prediction"]).tolist() for found in detections]
        rows.writerow(["filename", *EDGES, *(f"class{n}" for n in range(len(values[0]) if values else 0))])
        for found, prediction in zip(detections, values, strict=True):
            rows.writerow([found["filename"], *map(int, found["window"]), *prediction])


def _write_hdf5(path: str, detections: list[dict[str, Any]]) -> None:
    """Write the DataFrame "df", indexed by filename, with the columns prediction and those of the window."""
    import pandas

    frame = pandas.DataFrame(detections, columns=["filename", "window", "prediction"]).set_index("filename")
    frame[EDGES] = np.array([found["window"] for found in detections]).reshape(-1, len(EDGES))
    with replacing(path, "detections") as temporary:
        frame.drop(columns="window").to_hdf(temporary, key="df", mode="w")
