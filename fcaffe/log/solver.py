"""What Caffe says while it builds a solver and trains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fcaffe.log.lines import info
from fcaffe.log.words import message_string, number, weighted


def use_cpu() -> None:
    info("Use CPU.", "caffe.cpp:197")


def using_gpus(gpus: list[int], names: Sequence[str]) -> None:
    """To train on; `names` are those of all GPUs there are."""
    info(f"Using GPUs {', '.join(map(str, gpus))}", "caffe.cpp:204")
    for gpu in gpus:
        info(f"GPU {gpu}: {names[gpu]}", "caffe.cpp:209")


def initializing_solver(text: str) -> None:
    info(f"Initializing solver from parameters: \n{message_string(text)}", "solver.cpp:45")


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


def net_outputs(phase: str, outputs: Iterable[tuple[str, Any, float]], values: Iterable[Any]) -> None:
    """Each output (name, blob, loss weight) of a net with its values, an array each, numbered throughout. `phase` is
    Train or Test."""
    source = "solver.cpp:258" if phase == "Train" else "solver.cpp:414"
    index = 0
    for (name, _, weight), array in zip(outputs, values, strict=True):
        for value in array:
            info(f"    {phase} net output #{index}: {weighted(name, float(value), weight)}", source)
            index += 1


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
