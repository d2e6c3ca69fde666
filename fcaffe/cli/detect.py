"""`fcaffe detect`: classifies windows of pictures, as python/detect.py of Caffe does."""

from __future__ import annotations

import csv
import importlib.util
import io
import time
from typing import Any

import click
import numpy as np

from fcaffe.cli.flags import command
from fcaffe.cli.pictures import PictureFlags, picture_flags
from fcaffe.cli.progress import counted
from fcaffe.errors import UsageError
from fcaffe.input_files import read_input, reading
from fcaffe.output_files import replacing
from fcaffe.pycaffe.detector import Detector

CROP_MODES = ["list", "selective_search"]
EDGES = ["ymin", "xmin", "ymax", "xmax"]

Windows = list[tuple[str, list[np.ndarray]]]


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
    "crop_mode",
    type=click.Choice(CROP_MODES),
    default="selective_search",
    help="Source of the windows (selective_search, which needs MATLAB).",
)
@click.option(
    "--context_pad",
    "context_pad",
    type=int,
    default=16,
    metavar="N",
    help="Pixels of context around the window, at each border of the net's input (16).",
)
@picture_flags
def detect(source: str, target: str, flags: PictureFlags, crop_mode: str, context_pad: int) -> int:
    if not target.lower().endswith("csv") and None in map(importlib.util.find_spec, ("pandas", "tables")):
        raise UsageError(
            f"to write {target} as HDF5 needs pandas and PyTables: pip install 'fcaffe[tables]'; or name a .csv"
        )
    mean = flags.mean()
    if mean is not None and mean.ndim == 3 and mean.shape[1:] != (1, 1):
        mean = mean.mean(1).mean(1)
    elif mean is not None:
        mean = mean.ravel()
    detector = flags.create(Detector, mean, context_pad=context_pad)
    start = time.monotonic()
    print("Loading input...")
    if crop_mode == "list":
        windows = _read_windows(source)
        pictures = counted(windows, len(windows), "pictures")
        detections = [found for one in pictures for found in detector.detect_windows([one])]
    else:
        detections = detector.detect_selective_search(_read_names(source))
    print(f"Processed {len(detections)} windows in {time.monotonic() - start:.3f} s.")
    start = time.monotonic()
    if target.lower().endswith("csv"):
        _write_csv(target, detections)
    else:
        _write_hdf5(target, detections)
    print(f"Saved to {target} in {time.monotonic() - start:.3f} s.")
    return 0


def _text(path: str, extension: str, mode: str) -> str:
    if not path.lower().endswith(extension):
        raise UsageError(f"{path}: with --crop_mode {mode} the input is a .{extension}")
    with reading(path, UsageError, "list"):
        return read_input(path).decode("utf-8-sig", "surrogateescape")


def _read_names(path: str) -> list[str]:
    return [name for line in _text(path, "txt", "selective_search").splitlines() if (name := line.strip())]


def _read_windows(path: str) -> Windows:
    """Return the windows of each picture, in the order of the pictures' first lines."""
    rows = csv.reader(io.StringIO(_text(path, "csv", "list")), skipinitialspace=True)
    columns = [name.strip() for name in next(rows, [])]
    if missing := {"filename", *EDGES} - set(columns):
        raise UsageError(f"{path}: its first line names no column {', '.join(sorted(missing))}")
    windows: dict[str, list[np.ndarray]] = {}
    for row in rows:
        if not row:
            continue
        named = dict(zip(columns, row, strict=False))
        try:
            window = np.array([int(float(named[edge])) for edge in EDGES])
        except (KeyError, ValueError, OverflowError) as problem:
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
