"""Log lines about the data that a net reads and writes, and of Caffe's tools."""

from __future__ import annotations

from fcaffe.log.lines import Sentence, info, number

_datatypes_told: set[str] = set()

opened_lmdb = Sentence("Opened lmdb {source}", "db_lmdb.cpp:35")
opened_leveldb = Sentence("Opened leveldb {source}", "db_leveldb.cpp:18")
restarting_prefetch = Sentence("Restarting data prefetching from start.", "data_layer.cpp:73")
waiting_for_data = Sentence("Waiting for data", "blocking_queue.cpp:49")


output_data_size = Sentence(
    "output data size: {shape}", "{source}"
)  # numbers with commas; the source of a layer's type
loading_mean = Sentence("Loading mean file from: {path}", "data_transformer.cpp:25")
loading_window_mean = Sentence("Loading mean file from: {path}", "window_data_layer.cpp:196")
opening_image_list = Sentence("Opening file {path}", "image_data_layer.cpp:38")
shuffling_images = Sentence("Shuffling data", "image_data_layer.cpp:53")
number_of_images = Sentence("A total of {count:d} images.", "image_data_layer.cpp:63")
skipping_images = Sentence("Skipping first {count:d} data points.", "image_data_layer.cpp:70")
loading_hdf5_list = Sentence("Loading list of HDF5 filenames from: {path}", "hdf5_data_layer.cpp:81")
number_of_hdf5_files = Sentence("Number of HDF5 files: {count:d}", "hdf5_data_layer.cpp:95")


def hdf5_datatype(kind: str) -> None:
    """`kind` is FLOAT or INTEGER. Logged for the first dataset of the kind in a process."""
    if kind not in _datatypes_told:
        _datatypes_told.add(kind)
        info(f"Datatype class: H5T_{kind}", "hdf5.cpp:33" if kind == "FLOAT" else "hdf5.cpp:36")


saving_hdf5 = Sentence("Saving HDF5 file {path}", "hdf5_output_layer.cpp:33")
saved_hdf5 = Sentence("Successfully saved {rows:d} rows", "hdf5_output_layer.cpp:38")


# The parameters of a WindowData layer: two overlap thresholds, and the fraction of foreground in a batch.
window_data = Sentence(
    "Window data layer:\n  foreground (object) overlap threshold: {foreground:.6g}\n"
    "  background (non-object) overlap threshold: {background:.6g}\n"
    "  foreground sampling fraction: {fraction:.6g}\n  cache_images: {cached:d}\n  root_folder: {root_folder}",
    "window_data_layer.cpp:53",
)


windows_of_image = Sentence(
    "num: {index:d} {path} {shape[0]} {shape[1]} {shape[2]} windows to process: {windows:d}",
    "window_data_layer.cpp:148",
)


def windows_read(images: int, samples: dict[int, int]) -> None:
    """`samples` maps a class to its number of windows."""
    info(f"Number of images: {images}", "window_data_layer.cpp:157")
    for label, count in sorted(samples.items()):
        info(f"class {label} has {count} samples", "window_data_layer.cpp:161")


window_crops = Sentence(
    "Amount of context padding: {context_pad:d}", "window_data_layer.cpp:165",
    "Crop mode: {crop_mode}", "window_data_layer.cpp:168",
)  # fmt: skip


mnist_items = Sentence(
    "A total of {count:d} items.", "convert_mnist_data.cpp:88",
    "Rows: {rows:d} Cols: {columns:d}", "convert_mnist_data.cpp:89",
)  # fmt: skip
mnist_processed = Sentence("Processed {count:d} files.", "convert_mnist_data.cpp:108")
siamese_items = Sentence(
    "A total of {count:d} items.", "convert_mnist_siamese_data.cpp:85",
    "Rows: {rows:d} Cols: {columns:d}", "convert_mnist_siamese_data.cpp:86",
)  # fmt: skip
cifar_training = Sentence("Writing Training data", "convert_cifar_data.cpp:52")
cifar_batch = Sentence("Training Batch {number:d}", "convert_cifar_data.cpp:55")
cifar_testing = Sentence("Writing Testing data", "convert_cifar_data.cpp:73")
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
# `kind` is the message and the format, such as `NetParameter text`.
wrote_upgraded = Sentence("Wrote upgraded {kind} proto to {path}", "{tool}.cpp:{line:d}")
