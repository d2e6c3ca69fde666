"""Timing: how long each layer of a net takes."""

from __future__ import annotations

import time

from fcaffe import log
from fcaffe.net import Net

Seconds = list[float]  # one for each layer


def benchmark(net: Net, iterations: int) -> None:
    """Time forward and backward of every layer, after one of each to warm up, and log the averages in Caffe's form.

    As in Caffe every layer's backward counts, also that of layers which training would pass over, and reading data is
    part of the forward time of the layer that reads.
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
    """Run all layers, adding to each one's `seconds` until it is through; returns the loss."""
    loss, engine = 0.0, net.context.engine
    engine.synchronize()
    for index in range(len(net.nodes)):
        started = time.perf_counter()
        loss += net.forward(index, index)
        engine.synchronize()
        seconds[index] += time.perf_counter() - started
    return loss


def time_backward(net: Net, seconds: Seconds) -> None:
    """The same with their backward passes."""
    engine = net.context.engine
    engine.synchronize()
    for index, node in reversed(list(enumerate(net.nodes))):
        started = time.perf_counter()
        node.backward()
        engine.synchronize()
        seconds[index] += time.perf_counter() - started
