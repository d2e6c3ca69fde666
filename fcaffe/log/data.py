"""Log lines about the data that a net reads and writes."""

from __future__ import annotations

from fcaffe.log.lines import info
from fcaffe.log.sentence import Sentence

_datatypes_told: set[str] = set()

opened_lmdb = Sentence("Opened lmdb {source}", "db_lmdb.cpp:35")
opened_leveldb = Sentence("Opened leveldb {source}", "db_leveldb.cpp:18")
restarting_prefetch = Sentence("Restarting data prefetching from start.", "data_layer.cpp:73")
waiting_for_data = Sentence("Waiting for data", "blocking_queue.cpp:49")


def output_data_size(shape: tuple[int, ...], source: str = "data_layer.cpp:45") -> None:
    """`source` depends on the type of the layer."""
    info("output data size: " + ",".join(map(str, shape)), source)


def loading_mean(path: str, source: str = "data_transformer.cpp:25") -> None:
    info(f"Loading mean file from: {path}", source)


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


def windows_of_image(index: int, path: str, shape: tuple[int, int, int], windows: int) -> None:
    sizes = " ".join(map(str, shape))
    info(f"num: {index} {path} {sizes} windows to process: {windows}", "window_data_layer.cpp:148")


def windows_read(images: int, samples: dict[int, int]) -> None:
    """`samples` maps a class to its number of windows."""
    info(f"Number of images: {images}", "window_data_layer.cpp:157")
    for label, count in sorted(samples.items()):
        info(f"class {label} has {count} samples", "window_data_layer.cpp:161")


window_crops = Sentence(
    "Amount of context padding: {context_pad:d}", "window_data_layer.cpp:165",
    "Crop mode: {crop_mode}", "window_data_layer.cpp:168",
)  # fmt: skip
