"""Timing of a net layer by layer."""

from __future__ import annotations

import time

from fcaffe import log
from fcaffe.net import Net

Seconds = list[float]  # one for each layer


def benchmark(net: Net, iterations: int) -> None:
    """Time forward and backward of every layer, after a warm-up of one pass, and log the averages as Caffe does.

    As in Caffe, every layer runs backward, also those that training would skip, and the forward time of a data layer
    includes reading.
    """
    nothing = [0.0] * len(net.nodes)
    log.performing_forward()
    log.initial_loss(time_forward(net, nothing.copy()))
    log.performing_backward()
    time_backward(net, nothing.copy())
    log.benchmark_begins(iterations)
    forward, backward, total = nothing.copy(), nothing.copy(), 0.0
    for iteration in range(iterations):
        started = time.perf_counter()
        time_forward(net, forward)
        time_backward(net, backward)
        both = time.perf_counter() - started
        total += both
        log.forward_backward_time(iteration + 1, 1000 * both)
    log.times_per_layer()
    average = 1000 / iterations
    for node, ahead, back in zip(net.nodes, forward, backward, strict=True):
        log.layer_times(node.name, average * ahead, average * back)
    log.benchmark_ends(average * sum(forward), average * sum(backward), average * total, 1000 * total)


def time_forward(net: Net, seconds: Seconds) -> float:
    """Run all layers forward, add the seconds of each to `seconds`, and return the loss."""
    loss, engine = 0.0, net.context.engine
    engine.synchronize()
    for index in range(len(net.nodes)):
        started = time.perf_counter()
        loss += net.forward(index, index)
        engine.synchronize()
        seconds[index] += time.perf_counter() - started
    return loss


def time_backward(net: Net, seconds: Seconds) -> None:
    """Run all layers backward, and add the seconds of each to `seconds`."""
    engine = net.context.engine
    engine.synchronize()
    for index, node in reversed(list(enumerate(net.nodes))):
        started = time.perf_counter()
        node.backward()
        engine.synchronize()
        seconds[index] += time.perf_counter() - started
