"""Layers as parts of CUDA graphs: captured once, what they compute follows their bottoms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import engine_choice
from tests.cases import each_of
from tests.engines.cuda import emulator, stand_in_cupy, stand_in_engine
from tests.engines.cuda.test_plain_on_stand_in import PlainOnDevice
from tests.golden_values import assert_close
from tests.layers.examples import EXAMPLES
from tests.layers.test_contract import Case


class Asynchronous(PlainOnDevice):
    asynchronous = True

    def __init__(self) -> None:
        super().__init__()
        self.stream = self.xp.cuda.Stream(non_blocking=True).use()


@pytest.fixture(autouse=True, params=["plain", "CUDA"])
def on_stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "CUDA" and not emulator.has_compiler:
        pytest.skip("the emulator needs g++")
    stand_in_engine.install(monkeypatch)
    made = Asynchronous() if request.param == "plain" else stand_in_engine.engine()
    if request.param == "plain":
        monkeypatch.setattr(stand_in_cupy.cublas, "refuse_capture", lambda: None)
    monkeypatch.setattr(engine_choice, "chosen", lambda: made)
    yield
    stand_in_cupy.reset()


class InGraphs(Case):
    """A case whose passes run step by step, or as graphs."""

    def __init__(self, kind: str, example: Any) -> None:
        self.stream = engine_choice.engine().stream.use()  # type: ignore[attr-defined]
        super().__init__(kind, example)
        self.forward()
        for index, top in enumerate(self.top):
            top.diff[...] = top.xp.asarray(np.full(top.shape, 0.3 + index, np.float32))
        for blob in self.layer.blobs:
            _ = blob.diff  # has its memory before graphs are captured, as what these work in is free again afterwards

    def step_forward(self) -> None:
        self.layer.forward(self.bottom, self.top)

    def step_backward(self) -> None:
        if self.example.has_gradient:
            self.layer.backward(self.top, self.propagate_down, self.bottom)

    def captured(self, work: Any) -> Any:
        self.stream.begin_capture()
        work()
        return self.stream.end_capture()

    def change_bottoms(self, factor: float) -> None:
        for index, blob in enumerate(self.bottom):
            if index not in self.example.labels:
                blob.data[...] *= np.float32(factor)

    def found(self) -> list[np.ndarray]:
        arrays = [blob.data for blob in self.top]
        if self.example.has_gradient:
            arrays += [blob.diff for blob, down in zip(self.bottom, self.propagate_down, strict=True) if down]
            arrays += [blob.diff for blob in self.layer.blobs]
        return [array.get() for array in arrays]


@each_of((kind, example) for kind, examples in EXAMPLES.items() for example in examples)
def test_graphs_follow_their_bottoms(kind: str, example: Any) -> None:
    """Also where one pass runs as a graph and the other does not, with a pass step by step in between."""
    case, same = InGraphs(kind, example), InGraphs(kind, example)
    if case.layer.traits.needs_host or case.layer.traits.reads_host:
        return  # it runs outside of graphs
    pair = (case, same)
    for each in pair:
        each.step_forward()
        each.step_backward()
    forward, backward = case.captured(case.step_forward), case.captured(case.step_backward)
    for forward_runs, backward_runs in ((True, True), (True, False), (False, True)):
        for each in pair:
            each.change_bottoms(0.75)
            each.step_forward()
            each.step_backward()
            each.change_bottoms(0.5)
        for runs, graph, step in (
            (forward_runs, forward, case.step_forward),
            (backward_runs, backward, case.step_backward),
        ):
            if runs:
                graph.launch(case.stream)
            else:
                step()
        same.step_forward()
        same.step_backward()
        for found, wanted in zip(case.found(), same.found(), strict=True):
            assert_close(found, wanted, kind)


@each_of((kind, example) for kind, examples in EXAMPLES.items() for example in examples)
def test_only_layers_that_say_so_wait(kind: str, example: Any) -> None:
    case = InGraphs(kind, example)
    case.step_backward()  # the first time plans are chosen
    with stand_in_cupy.watched() as (waits, uploads):
        case.step_forward()
        case.step_backward()
    assert case.layer.traits.needs_host or case.layer.traits.reads_host or not (waits or uploads)
