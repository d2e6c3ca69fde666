"""What Caffe says of the data that a net reads and writes."""

from __future__ import annotations

from fcaffe.log.lines import info
from fcaffe.log.words import number

_datatypes_told: set[str] = set()


def opened_lmdb(source: str) -> None:
    info(f"Opened lmdb {source}", "db_lmdb.cpp:35")


def opened_leveldb(source: str) -> None:
    info(f"Opened leveldb {source}", "db_leveldb.cpp:18")


def restarting_prefetch() -> None:
    info("Restarting data prefetching from start.", "data_layer.cpp:73")


def waiting_for_data() -> None:
    info("Waiting for data", "blocking_queue.cpp:49")


def output_data_size(shape: tuple[int, ...], source: str = "data_layer.cpp:45") -> None:
    """`source` differs with the type of the layer."""
    info("output data size: " + ",".join(map(str, shape)), source)


def loading_mean(path: str, source: str = "data_transformer.cpp:26") -> None:
    info(f"Loading mean file from: {path}", source)


def opening_image_list(path: str) -> None:
    info(f"Opening file {path}", "image_data_layer.cpp:38")


def shuffling_images() -> None:
    info("Shuffling data", "image_data_layer.cpp:53")


def number_of_images(count: int) -> None:
    info(f"A total of {count} images.", "image_data_layer.cpp:63")


def skipping_images(count: int) -> None:
    info(f"Skipping first {count} data points.", "image_data_layer.cpp:70")


def loading_hdf5_list(path: str) -> None:
    info(f"Loading list of HDF5 filenames from: {path}", "hdf5_data_layer.cpp:81")


def number_of_hdf5_files(count: int) -> None:
    info(f"Number of HDF5 files: {count}", "hdf5_data_layer.cpp:95")


def hdf5_datatype(kind: str) -> None:
    """`kind` is FLOAT or INTEGER; told for the first dataset of the kind that a process reads."""
    if kind not in _datatypes_told:
        _datatypes_told.add(kind)
        info(f"Datatype class: H5T_{kind}", "hdf5.cpp:33" if kind == "FLOAT" else "hdf5.cpp:36")


def saving_hdf5(path: str) -> None:
    info(f"Saving HDF5 file {path}", "hdf5_output_layer.cpp:33")


def saved_hdf5(rows: int) -> None:
    info(f"Successfully saved {rows} rows", "hdf5_output_layer.cpp:38")


def window_data(foreground: float, background: float, fraction: float, cached: bool, root_folder: str) -> None:
    """The parameters of a WindowData layer: two thresholds of overlap, and the share of foreground in a batch."""
    info(
        f"Window data layer:\n  foreground (object) overlap threshold: {number(foreground)}\n"
        f"  background (non-object) overlap threshold: {number(background)}\n"
        f"  foreground sampling fraction: {number(fraction)}\n"
        f"  cache_images: {int(cached)}\n  root_folder: {root_folder}",
        "window_data_layer.cpp:53",
    )


def windows_of_image(index: int, path: str, shape: tuple[int, int, int], windows: int) -> None:
    sizes = " ".join(map(str, shape))
    info(f"num: {index} {path} {sizes} windows to process: {windows}", "window_data_layer.cpp:148")


def windows_read(images: int, samples: dict[int, int]) -> None:
    """`samples`: class -> number of windows."""
    info(f"Number of images: {images}", "window_data_layer.cpp:157")
    for label, count in sorted(samples.items()):
        info(f"class {label} has {count} samples", "window_data_layer.cpp:161")


def window_crops(context_pad: int, crop_mode: str) -> None:
    info(f"Amount of context padding: {context_pad}", "window_data_layer.cpp:165")
    info(f"Crop mode: {crop_mode}", "window_data_layer.cpp:168")
