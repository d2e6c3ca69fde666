"""What `caffe test`, `caffe time` and `caffe device_query` say."""

from __future__ import annotations

from collections.abc import Iterable

from fcaffe.log.lines import error, fatal, info
from fcaffe.log.words import number, weighted


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
    info(weighted(name, value, loss_weight), "caffe.cpp:321")


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


def unknown_action(name: str, known: list[str]) -> None:
    error("Available caffe actions:", "caffe.cpp:65")
    for action in known:
        error(f"\t{action}", "caffe.cpp:68")
    fatal(f"Unknown action: {name}", "caffe.cpp:70")
