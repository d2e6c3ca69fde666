"""The log: glog's line format and Caffe's sentences, which parse_log, DIGITS and users' scripts read.

Every line that Caffe 1.0 prints during a run is a function here, so the grammar can be read, and kept, in one place.
Such a line carries the source tag that Caffe gives it (`solver.cpp:239`); a line of fcaffe's own carries the Python
file and line that wrote it.

A prefix is `LMMDD HH:MM:SS.uuuuuu TID file:line] `: level, month and day, time, thread. A message with line breaks has
the prefix on its first line only. Numbers print as C++ streams print them (six significant digits, `1e-05`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fcaffe.errors import FcaffeError
from fcaffe.outlet import Outlet

LEVELS = "IWEF"
FULL = (errno.ENOSPC, errno.EDQUOT)  # what a run must outlive, also if it is started again then

_lock = threading.Lock()
_files: list[Outlet] = []
_level = os.environ.get("GLOG_minloglevel", "")  # noqa: SIM112 - glog's name
_minimum = int(_level) if _level.isdecimal() else 0
_to_stderr = True
_show: Callable[[str], None] | None = None
_datatypes_told: set[str] = set()


def number(value: float) -> str:
    """`value` as C++'s `ostream <<` prints a float."""
    return f"{value:.6g}"


def prefix(level: str, source: str) -> str:
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    return f"{level}{stamp}.{int(now % 1 * 1e6):06d} {threading.get_native_id():5d} {source}] "


def write(level: str, message: str, source: str | None = None, depth: int = 2) -> None:
    """One message to stderr and to the log files; `source` defaults to the caller's file and line."""
    if LEVELS.index(level) < _minimum:
        return
    if source is None:
        frame = sys._getframe(depth)
        source = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    line = prefix(level, source) + message + ("" if message.endswith("\n") else "\n")
    with _lock:
        if _to_stderr:
            (_show or _emit)(line)
        for file in _files:
            failed_before = file.problem is not None
            file.write(line.encode(errors="backslashreplace"))
            if file.problem is not None and not failed_before:
                reason = f"{file.problem.strerror}; each line is tried anew"
                _emit(prefix("W", _here()) + f"No more lines go to {file.name}: {reason}\n")


def _emit(line: str) -> None:
    """Write to standard error, wherever that leads at present; a run outlives that it cannot be written."""
    stream = sys.stderr
    with contextlib.suppress(OSError, ValueError):  # ValueError: somebody has closed the stream
        if stream is sys.__stderr__ and stream is not None:  # Python's own would keep, and try at exit, what failed
            stream.flush()
            _own_stderr.write(line.encode(errors="backslashreplace"))
        elif stream is not None:
            stream.write(line)
            stream.flush()


def lines_missing(lines: int, reason: str) -> str:
    """The line that stands where some could not be written."""
    return prefix("W", _here()) + f"{lines} lines are missing here: {reason}\n"


def _here() -> str:
    return f"log.py:{sys._getframe(1).f_lineno}"


_own_stderr = Outlet(2, "standard error", notice=lines_missing)


def info(message: str, source: str | None = None) -> None:
    write("I", message, source)


def warning(message: str, source: str | None = None) -> None:
    write("W", message, source)


def error(message: str, source: str | None = None) -> None:
    write("E", message, source)


def fatal(message: str, source: str | None = None) -> None:
    """The last line before an exit; it does not exit itself."""
    write("F", message, source)


def add_file(path: str) -> None:
    """Append every line to `path` as well, as far as there is room. FcaffeError if that is no place for a file."""
    try:
        _files.append(Outlet(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), path, notice=lines_missing))
    except OSError as problem:
        if problem.errno in FULL:
            warning(f"No log is kept in {path}: {problem.strerror}")
            return
        message = f"log file {path}: cannot write it ({problem.strerror}); name a file in a folder that you may write"
        raise FcaffeError(message) from problem


def close_files() -> None:
    while _files:
        with contextlib.suppress(OSError):
            os.close(_files.pop().fileno())


def set_minimum(level: int) -> None:
    """Drop lines below `level` (glog's minloglevel: 0 info, 1 warning, 2 error, 3 fatal)."""
    global _minimum
    _minimum = min(level, LEVELS.index("F"))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop lines of level I in the body of the `with`."""
    before = _minimum
    set_minimum(max(before, 1))
    try:
        yield
    finally:
        set_minimum(before)


def set_stderr(enabled: bool) -> None:
    """Whether lines go to stderr at all (they always go to the log files)."""
    global _to_stderr
    _to_stderr = enabled


def set_show(show: Callable[[str], None] | None) -> None:
    """Let a progress bar step aside: `show(line)` is called in place of writing the line to stderr."""
    global _show
    _show = show


# --- the net is built -------------------------------------------------------------------------------------------------


def _as_cpp(text: str) -> str:
    """A printed message with whole floats as C++ prints them: `lr_mult: 1`, where Python says `1.0`."""
    return re.sub(r"^( *\w+: -?\d+)\.0$", r"\1", text, flags=re.MULTILINE)


def initializing_net(text: str) -> None:
    info(f"Initializing net from parameters: \n{_as_cpp(text)}", "net.cpp:53")


def rule_differs(message: str, line: int) -> None:
    info(message, f"net.cpp:{line}")


def making_layer(name: str) -> None:
    """Also for a layer within a layer, such as the softmax of SoftmaxWithLoss."""
    info(f"Creating layer {name}", "layer_factory.hpp:77")


def creating_layer(name: str) -> None:
    info(f"Creating Layer {name}", "net.cpp:86")


def bottom_connected(layer: str, blob: str) -> None:
    info(f"{layer} <- {blob}", "net.cpp:408")


def top_connected(layer: str, blob: str, in_place: bool) -> None:
    if in_place:
        info(f"{layer} -> {blob} (in-place)", "net.cpp:369")
    else:
        info(f"{layer} -> {blob}", "net.cpp:382")


def setting_up(layer: str) -> None:
    info(f"Setting up {layer}", "net.cpp:124")


def shape_string(shape: tuple[int, ...]) -> str:
    """Caffe's form: the dimensions and, in parentheses, their product."""
    count = 1
    for dim in shape:
        count *= dim
    return "".join(f"{dim} " for dim in shape) + f"({count})"


def top_shape(shape: tuple[int, ...], loss_weight: float) -> None:
    info(f"Top shape: {shape_string(shape)}", "net.cpp:131")
    if loss_weight:
        info(f"    with loss weight {number(loss_weight)}", "net.cpp:134")


def memory_required(size: int) -> None:
    info(f"Memory required for data: {size}", "net.cpp:139")


def sharing_parameters(name: str, owner: str, index: int) -> None:
    info(f"Sharing parameters '{name}' owned by layer '{owner}', param index {index}", "net.cpp:467")


def needs_backward(layer: str, needed: bool) -> None:
    if needed:
        info(f"{layer} needs backward computation.", "net.cpp:200")
    else:
        info(f"{layer} does not need backward computation.", "net.cpp:202")


def produces_output(blob: str) -> None:
    info(f"This network produces output {blob}", "net.cpp:244")


def net_done() -> None:
    info("Network initialization done.", "net.cpp:257")


def ignoring_source_layer(name: str, sharing: bool) -> None:
    """A layer of the model file (or, `sharing`, of the training net) that this net lacks."""
    info(f"Ignoring source layer {name}", "net.cpp:678" if sharing else "net.cpp:746")


# --- the solver is built ----------------------------------------------------------------------------------------------


def use_cpu() -> None:
    info("Use CPU.", "caffe.cpp:197")


def using_gpus(gpus: list[int], names: Sequence[str]) -> None:
    """To train on; `names` are those of all GPUs there are."""
    info(f"Using GPUs {', '.join(map(str, gpus))}", "caffe.cpp:204")
    for gpu in gpus:
        info(f"GPU {gpu}: {names[gpu]}", "caffe.cpp:209")


def initializing_solver(text: str) -> None:
    info(f"Initializing solver from parameters: \n{_as_cpp(text)}", "solver.cpp:45")


def creating_train_net(source: str) -> None:
    info(f"Creating training net {source}", "solver.cpp:102")


def creating_test_net(index: int, source: str) -> None:
    info(f"Creating test net (#{index}) {source}", "solver.cpp:190")


def solver_done() -> None:
    info("Solver scaffolding done.", "solver.cpp:57")


def finetuning(path: str) -> None:
    info(f"Finetuning from {path}", "solver.cpp:72")


def resuming(path: str) -> None:
    info(f"Resuming from {path}", "caffe.cpp:235")


def starting_optimization() -> None:
    info("Starting Optimization", "caffe.cpp:239")


# --- training ---------------------------------------------------------------------------------------------------------


def solving(net: str, policy: str) -> None:
    info(f"Solving {net}", "solver.cpp:289")
    info(f"Learning Rate Policy: {policy}", "solver.cpp:290")


def restoring(path: str) -> None:
    info(f"Restoring previous solver status from {path}", "solver.cpp:295")


def restoring_history(solver: str) -> None:
    info(f"{solver}Solver: restoring history", "sgd_solver.cpp:336")


def iteration(index: int, rate: float, seconds: float, display: int, loss: float) -> None:
    """`rate` in iterations a second; the seconds of `display` iterations are cut, not rounded, to milliseconds."""
    info(
        f"Iteration {index} ({number(rate)} iter/s, {number(int(seconds * 1000) / 1000)}s/{display} iters), "
        f"loss = {number(loss)}",
        "solver.cpp:239",
    )


def net_output(phase: str, index: int, name: str, value: float, loss_weight: float) -> None:
    """`phase` is Train or Test."""
    text = f"    {phase} net output #{index}: {name} = {number(value)}"
    if loss_weight:
        text += f" (* {number(loss_weight)} = {number(loss_weight * value)} loss)"
    info(text, "solver.cpp:258" if phase == "Train" else "solver.cpp:414")


def net_outputs(phase: str, outputs: Iterable[tuple[str, Any, float]], values: Iterable[Any]) -> None:
    """Each output (name, blob, loss weight) of a net with its values, an array each, numbered throughout."""
    numbered = (
        (name, weight, value) for (name, _, weight), array in zip(outputs, values, strict=True) for value in array
    )
    for index, (name, weight, value) in enumerate(numbered):
        net_output(phase, index, name, float(value), weight)


def learning_rate(index: int, rate: float) -> None:
    info(f"Iteration {index}, lr = {number(rate)}", "sgd_solver.cpp:112")


def multistep(index: int, step: int) -> None:
    info(f"MultiStep Status: Iteration {index}, step = {step}", "sgd_solver.cpp:50")


def clipping(norm: float, limit: float) -> None:
    info(
        f"Gradient clipping: scaling down gradients (L2 norm {number(norm)} > {number(limit)}) "
        f"by scale factor {number(limit / norm)}",
        "sgd_solver.cpp:99",
    )


def final_loss(index: int, loss: float) -> None:
    info(f"Iteration {index}, loss = {number(loss)}", "solver.cpp:327")


def testing(index: int, net: int) -> None:
    info(f"Iteration {index}, Testing net (#{net})", "solver.cpp:347")


def test_loss(loss: float) -> None:
    info(f"Test loss: {number(loss)}", "solver.cpp:401")


def test_interrupted() -> None:
    info("Test interrupted.", "solver.cpp:394")


def snapshotting_model(path: str, kind: str) -> None:
    """`kind` is 'binary proto' or 'HDF5'."""
    info(f"Snapshotting to {kind} file {path}", "solver.cpp:464" if kind == "binary proto" else "solver.cpp:474")


def snapshotting_state(path: str, kind: str) -> None:
    source = "sgd_solver.cpp:284" if kind == "binary proto" else "sgd_solver.cpp:296"
    info(f"Snapshotting solver state to {kind} file {path}", source)


def stopped_early() -> None:
    info("Optimization stopped early.", "solver.cpp:311")


def optimization_done() -> None:
    info("Optimization Done.", "solver.cpp:332")


def run_done() -> None:
    info("Optimization Done.", "caffe.cpp:250")


# --- debug_info -------------------------------------------------------------------------------------------------------


def debug_forward(layer: str, kind: str, blob: str, mean: float) -> None:
    """`kind` is 'top blob' or 'param blob'; `mean` the mean of absolute values."""
    info(
        f"    [Forward] Layer {layer}, {kind} {blob} data: {number(mean)}",
        "net.cpp:593" if kind == "top blob" else "net.cpp:605",
    )


def debug_backward(layer: str, kind: str, blob: str, mean: float) -> None:
    """`kind` is 'bottom blob' or 'param blob'."""
    info(
        f"    [Backward] Layer {layer}, {kind} {blob} diff: {number(mean)}",
        "net.cpp:621" if kind == "bottom blob" else "net.cpp:632",
    )


def debug_all_params(l1: tuple[float, float], l2: tuple[float, float]) -> None:
    """Norms of all parameters' (data, diff). Caffe logs this one at level E."""
    error(
        f"    [Backward] All net params (data, diff): L1 norm = ({number(l1[0])}, {number(l1[1])}); "
        f"L2 norm = ({number(l2[0])}, {number(l2[1])})",
        "net.cpp:721",
    )


# --- data -------------------------------------------------------------------------------------------------------------


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


# --- caffe test, caffe time and caffe device_query --------------------------------------------------------------------


def use_cpu_to_test() -> None:
    info("Use CPU.", "caffe.cpp:275")


def use_gpu_to_test(gpu: int, name: str) -> None:
    info(f"Use GPU with device ID {gpu}", "caffe.cpp:266")
    info(f"GPU device name: {name}", "caffe.cpp:270")


def use_cpu_to_time() -> None:
    info("Use CPU.", "caffe.cpp:343")


def use_gpu_to_time(gpu: int) -> None:
    info(f"Use GPU with device ID {gpu}", "caffe.cpp:339")


def not_using_gpu(gpu: int) -> None:
    info(f"Not using GPU #{gpu} for single-GPU function", "caffe.cpp:262")


def running_for(iterations: int) -> None:
    info(f"Running for {iterations} iterations.", "caffe.cpp:281")


def batch_output(batch: int, name: str, value: float) -> None:
    info(f"Batch {batch}, {name} = {number(value)}", "caffe.cpp:304")


def mean_loss(loss: float) -> None:
    info(f"Loss: {number(loss)}", "caffe.cpp:309")


def mean_output(name: str, value: float, loss_weight: float) -> None:
    text = f"{name} = {number(value)}"
    if loss_weight:
        text += f" (* {number(loss_weight)} = {number(loss_weight * value)} loss)"
    info(text, "caffe.cpp:321")


def performing_forward() -> None:
    info("Performing Forward", "caffe.cpp:351")


def initial_loss(loss: float) -> None:
    info(f"Initial loss: {number(loss)}", "caffe.cpp:356")


def performing_backward() -> None:
    info("Performing Backward", "caffe.cpp:357")


def benchmark_begins(iterations: int) -> None:
    info("*** Benchmark begins ***", "caffe.cpp:365")
    info(f"Testing for {iterations} iterations.", "caffe.cpp:366")


def forward_backward_time(iteration: int, milliseconds: float) -> None:
    """`iteration` counts from 1."""
    info(f"Iteration: {iteration} forward-backward time: {number(milliseconds)} ms.", "caffe.cpp:394")


def times_per_layer() -> None:
    info("Average time per layer: ", "caffe.cpp:397")


def layer_times(layer: str, forward: float, backward: float) -> None:
    """Averages in milliseconds."""
    info(f"{layer:>10}\tforward: {number(forward)} ms.", "caffe.cpp:400")
    info(f"{layer:>10}\tbackward: {number(backward)} ms.", "caffe.cpp:403")


def benchmark_ends(forward: float, backward: float, both: float, total: float) -> None:
    """Milliseconds: the averages of a pass and of an iteration, and all iterations together."""
    info(f"Average Forward pass: {number(forward)} ms.", "caffe.cpp:408")
    info(f"Average Backward pass: {number(backward)} ms.", "caffe.cpp:410")
    info(f"Average Forward-Backward: {number(both)} ms.", "caffe.cpp:412")
    info(f"Total Time: {number(total)} ms.", "caffe.cpp:414")
    info("*** Benchmark ends ***", "caffe.cpp:415")


def querying_gpus(gpus: str) -> None:
    info(f"Querying GPUs {gpus}", "caffe.cpp:138")


def gpu_fields(fields: Iterable[tuple[str, object]]) -> None:
    """What is known of a GPU: Caffe's 18 names and their values, one to a line."""
    lines = (*range(178, 189), 191, *range(194, 198), 199, 200)
    for line, (name, value) in zip(lines, fields, strict=True):
        info(f"{name + ':':<30} {value}", f"common.cpp:{line}")


def available_actions(names: list[str]) -> None:
    error("Available caffe actions:", "caffe.cpp:65")
    for name in names:
        error(f"\t{name}", "caffe.cpp:68")
