"""Reads the training net and the test nets of a solver, loads initial weights, and finds missing fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fcaffe import log
from fcaffe.errors import SnapshotError, SolverError
from fcaffe.net import Net
from fcaffe.net.weights import load_weights, misfit, tell_untouched
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.solvers.learning_rate import POLICIES

Source = tuple[Any, str]  # a NetParameter with its state, and its source in Caffe's words


def train_net_param(param: Any) -> tuple[Any, str]:
    """Return the training net and its field, exactly one of net, net_param, train_net and train_net_param."""
    given = [field for field in ("net", "net_param", "train_net", "train_net_param") if param.HasField(field)]
    if len(given) != 1:
        raise SolverError(
            "a solver must give its training net by exactly one of net, net_param, train_net and train_net_param; "
            f"this one has {' and '.join(given) if given else 'none'}"
        )
    net, _ = _read(param, given[0])
    return _with_state(net, pb.TRAIN, param.train_state), given[0]


def test_net_params(param: Any) -> list[Source]:
    """Return the test nets: each test_net_param, each test_net, then the common net for every remaining test_iter."""
    if param.HasField("net") and param.HasField("net_param"):
        raise SolverError("a solver cannot have both net and net_param")
    common = next((field for field in ("net_param", "net") if param.HasField(field)), None)
    sources = [(_upgraded(net, "test_net_param"), "test_net_param") for net in param.test_net_param]
    sources += [(read_net(path), f"test_net file: {path}") for path in param.test_net]
    left = len(param.test_iter) - len(sources)
    if left < 0 or (left and common is None):
        raise SolverError(
            f"test_iter must be given once for each test net: there are {len(sources)} test net(s) and "
            f"{len(param.test_iter)} test_iter"
        )
    if left:
        assert common is not None
        sources += [_read(param, common) for _ in range(left)]
    if param.test_state and len(param.test_state) != len(sources):
        raise SolverError(
            f"test_state must be given once per test net or not at all: {len(param.test_state)} for {len(sources)}"
        )
    if sources and param.test_interval <= 0:
        raise SolverError("a solver with test nets needs a positive test_interval")
    states = list(param.test_state) or [None] * len(sources)
    return [(_with_state(net, pb.TEST, state), source) for (net, source), state in zip(sources, states, strict=True)]


def finetune(net: Net, weights: Iterable[str], tell: bool = False, strict: bool = False) -> None:
    """Copy the weights from the files of the solver's `weights`, in order; an entry may list several, with commas.

    With `tell` the log names the layers that no file has weights for. If these are all, `strict` raises SnapshotError.
    """
    paths = [path.strip() for entry in weights for path in entry.split(",")]
    given: set[str] = set()
    for path in paths:
        if not path:
            raise SolverError(f'the list of weights "{",".join(paths)}" has an empty name in it; take it out')
        log.finetuning(path)
        given.update(layer.name for layer in load_weights(net, path).layers)
    if paths and strict and (problem := misfit(net, given, ", ".join(paths))):
        raise SnapshotError(problem)
    if paths and tell:
        tell_untouched(net, given, ", ".join(paths))


def check_same(workers: Workers, what: str, *messages: Any) -> None:
    """Raise on all workers if the messages differ between them, since their sums would wait forever. Collective."""
    if workers.size == 1:
        return
    texts = []
    for message in messages:
        own = type(message).FromString(message.SerializeToString())
        if "device_id" in own.DESCRIPTOR.fields_by_name:
            own.ClearField("device_id")  # differs by worker
        texts.append(str(own))
    workers.check_same(what, "".join(texts).encode())


def _read(param: Any, field: str) -> Source:
    value = getattr(param, field)
    if not value:
        raise SolverError(f'{field}: "" names no file; give the path of the net\'s prototxt')
    if field.endswith("_param"):
        return _upgraded(value, field), field
    return read_net(value), f"{field} file: {value}"


def _upgraded(net: Any, name: str) -> Any:
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    upgrade_net(copy, name)
    return copy


def _with_state(net: Any, phase: int, state: Any) -> Any:
    """Merge the phase, the net's own state and the solver's state, in this order, into the net."""
    merged = pb.NetState(phase=phase)
    merged.MergeFrom(net.state)
    if state is not None:
        merged.MergeFrom(state)
    net.state.CopyFrom(merged)
    return net


def missing_fields(param: Any) -> Iterator[str]:
    """Yield a line for each field that is missing and counts as 0, which Caffe accepts: what is wrong, what to do."""
    if not param.HasField("base_lr") and param.lr_policy != "multifixed":
        yield "base_lr is missing and counts as 0, so no weight changes; give it, such as base_lr: 0.01"
    given = {field.name for field, _ in param.ListFields()}
    if missing := [name for name in POLICIES[param.lr_policy][1] if name not in given]:
        count, them = ("count", "them") if missing[1:] else ("counts", "it")
        yield f'lr_policy "{param.lr_policy}" lacks {" and ".join(missing)}, which {count} as 0; give {them}'
    if param.test_interval > 0 and not param.test_iter:
        yield "test_interval is given without test_iter, so nothing is tested; give test_iter once for each test net"
