"""Log lines of Caffe's tools: convert_imageset, compute_image_mean, extract_features and the upgrades."""

from __future__ import annotations

from fcaffe.log.lines import error, info, warning
from fcaffe.log.sentence import Sentence, number

shuffling_list = Sentence("Shuffling data", "convert_imageset.cpp:86")
listed_images = Sentence("A total of {count:d} images.", "convert_imageset.cpp:89")
assuming_encoded = Sentence("encode_type specified, assuming encoded=true.", "convert_imageset.cpp:92")
unreadable_image = Sentence("Could not open or find file {path}", "io.cpp:80", "E")


def no_encoding(path: str) -> None:
    """The file name of an image has no extension."""
    warning(f"Failed to guess the encoding of '{path}'", "convert_imageset.cpp:117")


def converted(count: int, last: bool) -> None:
    info(f"Processed {count} files.", "convert_imageset.cpp:153" if last else "convert_imageset.cpp:147")


decoding_datum = Sentence("Decoding Datum", "compute_image_mean.cpp:57")
starting_iteration = Sentence("Starting iteration", "compute_image_mean.cpp:70")


def added_up(count: int, last: bool) -> None:
    info(f"Processed {count} files.", "compute_image_mean.cpp:101" if last else "compute_image_mean.cpp:95")


writing_mean = Sentence("Write to {path}", "compute_image_mean.cpp:108")


def channel_means(values: list[float]) -> None:
    info(f"Number of channels: {len(values)}", "compute_image_mean.cpp:114")
    for channel, value in enumerate(values):
        info(f"mean_value channel [{channel}]: {number(value)}", "compute_image_mean.cpp:119")


extracting_on_cpu = Sentence("Using CPU", "extract_features.cpp:62", "E")


def extracting_on_gpu(gpu: int) -> None:
    error("Using GPU", "extract_features.cpp:52")
    error(f"Using Device_id={gpu}", "extract_features.cpp:58")


opening_dataset = Sentence("Opening dataset {path}", "extract_features.cpp:125")
extracting = Sentence("Extracting Features", "extract_features.cpp:133", "E")


def extracted(count: int, blob: str, last: bool) -> None:
    source = "extract_features.cpp:176" if last else "extract_features.cpp:165"
    error(f"Extracted features of {count} query images for feature blob {blob}", source)


all_extracted = Sentence("Successfully extracted the features!", "extract_features.cpp:181", "E")


def already_upgraded(tool: str, path: str) -> None:
    error(f"File already in latest proto format: {path}", f"{tool}.cpp:43")


def cannot_upgrade(tool: str, kind: str, path: str) -> None:
    """`kind` is the format and the message, such as `binary file as NetParameter`."""
    error(f"Failed to parse input {kind}: {path}", f"{tool}.cpp:30")


def problems_while_upgrading(tool: str) -> None:
    error("Encountered error(s) while upgrading prototxt; see details above.", f"{tool}.cpp:39")


def wrote_upgraded(tool: str, kind: str, path: str) -> None:
    """`kind` is the message and the format, such as `NetParameter text`."""
    line = 48 if tool.endswith("binary") else 49
    info(f"Wrote upgraded {kind} proto to {path}", f"{tool}.cpp:{line}")
