"""Log lines of Caffe's tools: convert_imageset, compute_image_mean, extract_features and the upgrades."""

from __future__ import annotations

from fcaffe.log.lines import info
from fcaffe.log.sentence import Sentence, number

shuffling_list = Sentence("Shuffling data", "convert_imageset.cpp:86")
listed_images = Sentence("A total of {count:d} images.", "convert_imageset.cpp:89")
assuming_encoded = Sentence("encode_type specified, assuming encoded=true.", "convert_imageset.cpp:92")
unreadable_image = Sentence("Could not open or find file {path}", "io.cpp:80", level="E")
# The file name of an image has no extension.
no_encoding = Sentence("Failed to guess the encoding of '{path}'", "convert_imageset.cpp:117", level="W")
converted = Sentence("Processed {count:d} files.", "convert_imageset.cpp:147")
all_converted = Sentence("Processed {count:d} files.", "convert_imageset.cpp:153")
decoding_datum = Sentence("Decoding Datum", "compute_image_mean.cpp:57")
starting_iteration = Sentence("Starting iteration", "compute_image_mean.cpp:70")
added_up = Sentence("Processed {count:d} files.", "compute_image_mean.cpp:95")
all_added_up = Sentence("Processed {count:d} files.", "compute_image_mean.cpp:101")
writing_mean = Sentence("Write to {path}", "compute_image_mean.cpp:108")


def channel_means(values: list[float]) -> None:
    info(f"Number of channels: {len(values)}", "compute_image_mean.cpp:114")
    for channel, value in enumerate(values):
        info(f"mean_value channel [{channel}]: {number(value)}", "compute_image_mean.cpp:119")


extracting_on_cpu = Sentence("Using CPU", "extract_features.cpp:62", level="E")
extracting_on_gpu = Sentence(
    "Using GPU", "extract_features.cpp:52",
    "Using Device_id={gpu:d}", "extract_features.cpp:58",
    level="E",
)  # fmt: skip
opening_dataset = Sentence("Opening dataset {path}", "extract_features.cpp:125")
extracting = Sentence("Extracting Features", "extract_features.cpp:133", level="E")
_EXTRACTED = "Extracted features of {count:d} query images for feature blob {blob}"
extracted = Sentence(_EXTRACTED, "extract_features.cpp:165", level="E")
blob_extracted = Sentence(_EXTRACTED, "extract_features.cpp:176", level="E")
all_extracted = Sentence("Successfully extracted the features!", "extract_features.cpp:181", level="E")

already_upgraded = Sentence("File already in latest proto format: {path}", "{tool}.cpp:43", level="E")
# `kind` is the format and the message, such as `binary file as NetParameter`.
cannot_upgrade = Sentence("Failed to parse input {kind}: {path}", "{tool}.cpp:30", level="E")
problems_while_upgrading = Sentence(
    "Encountered error(s) while upgrading prototxt; see details above.", "{tool}.cpp:39", level="E"
)


def wrote_upgraded(tool: str, kind: str, path: str) -> None:
    """`kind` is the message and the format, such as `NetParameter text`."""
    line = 48 if tool.endswith("binary") else 49
    info(f"Wrote upgraded {kind} proto to {path}", f"{tool}.cpp:{line}")
