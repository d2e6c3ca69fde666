"""Log lines about the construction of a solver and about training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fcaffe.log.lines import Sentence, info, number, weighted

use_cpu = Sentence("Use CPU.", "caffe.cpp:197")


def using_gpus(gpus: list[int], names: Sequence[str]) -> None:
    """`names` are those of all GPUs of the machine, `gpus` indices into them."""
    info(f"Using GPUs {', '.join(map(str, gpus))}", "caffe.cpp:204")
    for gpu in gpus:
        info(f"GPU {gpu}: {names[gpu]}", "caffe.cpp:209")


initializing_solver = Sentence("Initializing solver from parameters: \n{text}", "solver.cpp:45")
# Line of solver.cpp for each field of the solver that can have the training net.
_TRAIN_NET_FIELDS = {"train_net_param": 88, "train_net": 92, "net_param": 97, "net": 102}


def creating_train_net(field: str, path: str) -> None:
    """`path` is empty if the field contains the net itself."""
    source = f"from {field} file: {path}" if path else f"specified in {field}."
    info(f"Creating training net {source}", f"solver.cpp:{_TRAIN_NET_FIELDS[field]}")


creating_test_net = Sentence("Creating test net (#{index:d}) {source}", "solver.cpp:190")
solver_done = Sentence("Solver scaffolding done.", "solver.cpp:57")
finetuning = Sentence("Finetuning from {path}", "solver.cpp:72")
resuming = Sentence("Resuming from {path}", "caffe.cpp:235")
starting_optimization = Sentence("Starting Optimization", "caffe.cpp:239")
solving = Sentence("Solving {net}", "solver.cpp:289", "Learning Rate Policy: {policy}", "solver.cpp:290")
restoring = Sentence("Restoring previous solver status from {path}", "solver.cpp:295")
restoring_history = Sentence("{solver}Solver: restoring history", "sgd_solver.cpp:336")


def iteration(index: int, rate: float, seconds: float, display: int, loss: float) -> None:
    """`rate` is in iterations per second. The seconds of `display` iterations are truncated to milliseconds."""
    info(
        f"Iteration {index} ({number(rate)} iter/s, {number(int(seconds * 1000) / 1000)}s/{display} iters), "
        f"loss = {number(loss)}",
        "solver.cpp:239",
    )


def net_outputs(phase: str, outputs: Iterable[tuple[str, Any, float]], values: Iterable[Any]) -> None:
    """Log each output (name, blob, loss weight) with its array of values. `phase` is Train or Test."""
    source = "solver.cpp:258" if phase == "Train" else "solver.cpp:414"
    index = 0
    for (name, _, weight), array in zip(outputs, values, strict=True):
        for value in array:
            info(f"    {phase} net output #{index}: {weighted(name, float(value), weight)}", source)
            index += 1


learning_rate = Sentence("Iteration {index:d}, lr = {rate:.6g}", "sgd_solver.cpp:112")
multistep = Sentence("MultiStep Status: Iteration {index:d}, step = {step:d}", "sgd_solver.cpp:50")


def clipping(norm: float, limit: float) -> None:
    info(
        f"Gradient clipping: scaling down gradients (L2 norm {number(norm)} > {number(limit)}) "
        f"by scale factor {number(limit / norm)}",
        "sgd_solver.cpp:99",
    )


final_loss = Sentence("Iteration {index:d}, loss = {loss:.6g}", "solver.cpp:327")
testing = Sentence("Iteration {index:d}, Testing net (#{net:d})", "solver.cpp:347")
test_loss = Sentence("Test loss: {loss:.6g}", "solver.cpp:401")
test_interrupted = Sentence("Test interrupted.", "solver.cpp:394")
missing_detections = Sentence("Missing true_pos for label: {label:d}", "solver.cpp:524", level="W")  # SSD
class_precision = Sentence("class{label:d}: {precision:.6g}", "solver.cpp:540")


def snapshotting_model(path: str, kind: str) -> None:
    """`kind` is 'binary proto' or 'HDF5'."""
    info(f"Snapshotting to {kind} file {path}", "solver.cpp:464" if kind == "binary proto" else "solver.cpp:474")


def snapshotting_state(path: str, kind: str) -> None:
    source = "sgd_solver.cpp:284" if kind == "binary proto" else "sgd_solver.cpp:296"
    info(f"Snapshotting solver state to {kind} file {path}", source)


stopped_early = Sentence("Optimization stopped early.", "solver.cpp:311")
optimization_done = Sentence("Optimization Done.", "solver.cpp:332")
run_done = Sentence("Optimization Done.", "caffe.cpp:250")
