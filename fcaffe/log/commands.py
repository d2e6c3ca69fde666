"""Log lines of `caffe test`, `caffe time` and `caffe device_query`, and of Caffe's Python interface."""

from __future__ import annotations

from collections.abc import Iterable

from fcaffe.log.lines import Sentence, error, fatal, info
from fcaffe.suggestions import did_you_mean

use_cpu_to_test = Sentence("Use CPU.", "caffe.cpp:275")

use_gpu_to_test = Sentence(
    "Use GPU with device ID {gpu:d}", "caffe.cpp:266",
    "GPU device name: {name}", "caffe.cpp:270",
)  # fmt: skip
use_cpu_to_time = Sentence("Use CPU.", "caffe.cpp:343")
use_gpu_to_time = Sentence("Use GPU with device ID {gpu:d}", "caffe.cpp:339")
not_using_gpu = Sentence("Not using GPU #{gpu:d} for single-GPU function", "caffe.cpp:262")
running_for = Sentence("Running for {iterations:d} iterations.", "caffe.cpp:281")
batch_output = Sentence("Batch {batch:d}, {name} = {value:.6g}", "caffe.cpp:304")
mean_loss = Sentence("Loss: {loss:.6g}", "caffe.cpp:309")
mean_output = Sentence("{output}", "caffe.cpp:321")  # see `weighted`
performing_forward = Sentence("Performing Forward", "caffe.cpp:351")
initial_loss = Sentence("Initial loss: {loss:.6g}", "caffe.cpp:356")
performing_backward = Sentence("Performing Backward", "caffe.cpp:357")

benchmark_begins = Sentence(
    "*** Benchmark begins ***", "caffe.cpp:365",
    "Testing for {iterations:d} iterations.", "caffe.cpp:366",
)  # fmt: skip

# `iteration` counts from 1.
forward_backward_time = Sentence(
    "Iteration: {iteration:d} forward-backward time: {milliseconds:.6g} ms.", "caffe.cpp:394"
)
times_per_layer = Sentence("Average time per layer: ", "caffe.cpp:397")

layer_times = Sentence(
    "{layer:>10}\tforward: {forward:.6g} ms.", "caffe.cpp:400",
    "{layer:>10}\tbackward: {backward:.6g} ms.", "caffe.cpp:403",
)  # fmt: skip
benchmark_ends = Sentence(
    "Average Forward pass: {forward:.6g} ms.", "caffe.cpp:408",
    "Average Backward pass: {backward:.6g} ms.", "caffe.cpp:410",
    "Average Forward-Backward: {both:.6g} ms.", "caffe.cpp:412",
    "Total Time: {total:.6g} ms.", "caffe.cpp:414",
    "*** Benchmark ends ***", "caffe.cpp:415",
)  # fmt: skip
querying_gpus = Sentence("Querying GPUs {gpus}", "caffe.cpp:138")


def gpu_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Caffe's 18 fields of a GPU, (name, value), one a line."""
    lines = (*range(178, 189), 191, *range(194, 198), 199, 200)
    for line, (name, value) in zip(lines, fields, strict=True):
        info(f"{name + ':':<30} {value}", f"common.cpp:{line}")


def unknown_action(name: str, known: list[str]) -> None:
    error("Available caffe actions:", "caffe.cpp:65")
    for action in known:
        error(f"\t{action}", "caffe.cpp:68")
    fatal(f"Unknown action: {name}{did_you_mean(name, known)}", "caffe.cpp:70")


of_script = Sentence("{text}", "_caffe.cpp:68")
timer_never_run = Sentence("Timer has never been run before reading time.", "benchmark.cpp:84", level="W")
# A script has called the older constructor of Net.
legacy_net = Sentence(
    "DEPRECATION WARNING - deprecated use of Python interface", "_caffe.cpp:139",
    'Use this instead (with the named "weights" parameter):', "_caffe.cpp:140",
    "Net('{network_file}', {phase:d}, weights='{weights}')", "_caffe.cpp:142",
    level="W",
)  # fmt: skip
