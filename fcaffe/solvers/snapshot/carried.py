"""Collects and restores the state that a run carries between iterations besides weights and histories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.net import Layer
from fcaffe.net.blob import Array
from fcaffe.net.layer import Held, State
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng.counter import KEYS
from fcaffe.solvers.run import Run
from fcaffe.solvers.snapshot.files import CarriedArray

Owner = tuple[str, str]  # of a state: a net ("" for none) and the key of the layer, or the part
States = dict[Owner, State]  # of one worker

TRAIN = "train"
RANDOM, LOSS, EXCHANGE, ENGINE, BEST = (("", name) for name in ("random", "loss", "exchange", "engine", "best"))
PARAMETERS = "parameters"  # the name of an array of indices beside the arrays of the exchange
GATHERED = 1 << 26  # bytes of a message to worker 0


def states_of(run: Run) -> States:
    """The states of this worker's owners and of its random stream. Arrays of the exchange may be views of live ones."""
    random = np.frombuffer(run.context.random.state(), np.uint8)
    return {key: _doing(owner, owner.state) for key, owner in owners(run).items()} | {RANDOM: {"state": random}}


class StreamsOfShards:
    """The state of a layer where each shard has a net of its own: the streams of all shards, in their order."""

    held = Held.STREAMS

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers

    def state(self) -> State:
        states = [layer.doing(layer.state) for layer in self._layers]
        return {name: np.concatenate([state[name] for state in states], axis=1) for name in states[0]}

    def restore_state(self, state: State) -> None:
        start = 0
        for layer in self._layers:
            stop = start + sum(array.shape[1] for array in list(layer.state().values())[:1])
            layer.doing(layer.restore_state, {name: array[:, start:stop] for name, array in state.items()})
            start = stop


def owners(run: Run) -> dict[Owner, Any]:
    """All objects that may have state, in the same order on all workers."""
    nets = {TRAIN: run.net} | {f"test {index}": net for index, net in enumerate(run.test_nets)}
    found: dict[Owner, Any] = {(name, layer.key): layer for name, net in nets.items() for layer in net.layers}
    if run.shards and run.shards.in_step:
        for layers in zip(*(net.layers for net in run.nets), strict=True):
            if layers[0].held is Held.STREAMS:
                found[TRAIN, layers[0].key] = StreamsOfShards(layers)
    best = {BEST: run.best} if run.best is not None else {}
    return found | {LOSS: run.smoothed, EXCHANGE: run.exchange, ENGINE: run.engine} | best


def collect(run: Run, states: States) -> tuple[Any, list[CarriedArray]]:
    """Collect the ResumeState and the arrays of a run from the `states_of` all workers.

    All workers call this. The result is complete on worker 0 only.
    """
    own = states[RANDOM]["state"].tobytes()
    resume = pb.ResumeState(seed=run.context.seed, noise=run.context.noise, noise_keys=KEYS, random=own)
    carried: list[CarriedArray] = []
    for key, owner in owners(run).items():
        held, state = _held(owner), states.get(key, {})
        if key == EXCHANGE:
            state = _for_file(run, state)
        everyones = [state] if held is Held.ALIKE else _gather(run.workers, state, held)
        for worker, state in enumerate(everyones):
            carried += [CarriedArray(*key, worker, name, np.asarray(array)) for name, array in state.items()]
    for worker, random in enumerate(run.workers.gather(own) or []):
        if random != own:  # they draw for shares of different sizes
            carried.append(CarriedArray(*RANDOM, worker, "state", np.frombuffer(random, np.uint8)))
    return resume, carried


def put_back(run: Run, resume: Any, carried: list[CarriedArray], path: str) -> None:
    """Restore what `collect` returned. The log names the owners whose state does not fit. All workers call this."""
    workers, then = run.workers, resume.made_with.workers or 1
    states: dict[Owner, list[State]] = {}  # those of the workers of that run, in order of ranks
    for array in carried:
        by_rank = states.setdefault((array.net, array.owner), [{} for _ in range(then)])
        if 0 <= array.worker < then:
            by_rank[array.worker][array.name] = array.values
    randoms = states.get(RANDOM, [{}] * then)
    own = randoms[workers.rank] if workers.size == then else {}
    run.context.random.set_state(own["state"].tobytes() if own else resume.random)
    for net in (run.net, *run.test_nets):
        net.context.seed = resume.seed
    found = owners(run)
    theirs, ours = (one.compression.partition(":")[0] for one in (resume.made_with, run.exchange))
    if theirs != ours:
        del found[EXCHANGE]  # residuals of another scheme have no meaning here
    misfits = [key for key, owner in found.items() if not _restore(run, key, owner, states.get(key, []))]
    misfits += [EXCHANGE] if EXCHANGE in states and EXCHANGE not in found else []
    if misfits:
        names = ", ".join(
            f'layer "{owner}" of the {net} net' if net else f"the {owner} of gradients" for net, owner in misfits
        )
        log.warning(f"{path}, of a run of {then} worker(s), has no state that fits {names}: begun anew")


def _restore(run: Run, key: Owner, owner: Any, states: list[State]) -> bool:
    """Restore an owner from the states of all workers of a run. Returns False if a part of the state is lost."""
    now = _doing(owner, owner.state)
    if not now:
        return True
    state = _fitting(run, key, owner, states, now) if states else None
    if state:
        _doing(owner, owner.restore_state, state)
        return True
    all_zero = bool(states) and not any(array.any() for state in states for array in state.values())
    return all_zero or _held(owner) is Held.MEAN or key in (LOSS, ENGINE, BEST)


def _doing(owner: Any, work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of an owner of state. Errors of a layer name it."""
    return owner.doing(work, *arguments) if isinstance(owner, Layer) else work(*arguments)


def _fitting(run: Run, key: Owner, owner: Any, states: list[State], now: State) -> State | None:
    """This worker's part of the states of all workers of a run; None if that does not fit the owner's state `now`."""
    workers, held = run.workers, _held(owner)
    in_turns = key[0] != TRAIN  # the readers of test nets, each of which has whole batches
    streams = None if in_turns else lambda: workers.broadcast_object(workers.gather(_streams(now)))
    state = part_of_worker(held, states, workers.rank, workers.size, streams)
    if state and key == EXCHANGE:
        return _in_flat_order(run, state)
    if state and held is Held.STREAMS and any(array.shape != now[name].shape for name, array in state.items()):
        return None
    return state


def _held(owner: Any) -> Held:
    return getattr(owner, "held", Held.ALIKE)  # the state of an engine is the same on all workers


def _gather(workers: Workers, state: State, held: Held) -> list[State]:
    """The states of all workers by rank, on worker 0; elsewhere an empty list. Large arrays are sent in pieces."""
    if held is not Held.SUM:
        return workers.gather(state) or []
    everyones: list[State] = [{} for _ in range(workers.size)]
    for name, array in state.items():
        cut = np.array_split(array, 1 + array.nbytes // GATHERED) if array.ndim else [array]
        gathered = [workers.gather(piece) for piece in cut]
        for worker, state in enumerate(everyones if workers.rank == 0 else ()):
            pieces = [everyone[worker] for everyone in gathered if everyone]
            state[name] = np.concatenate(pieces) if array.ndim else pieces[0]
    return everyones if workers.rank == 0 else []


def _for_file(run: Run, state: State) -> State:
    """The flat arrays of the exchange in the order that files have, which does not depend on the engine's layout.

    They lack the parameters that are split over the workers. If there are such, `parameters` has the indices of others.
    """
    parts = [(one.blob, part) for one, part in run.net.parameters.with_slices() if not one.is_split]
    owned = run.net.parameters.owned

    def ordered(flat: Array) -> np.ndarray:
        return np.concatenate(
            [np.zeros(0, np.float32), *(blob.logical(flat[part]).reshape(-1) for blob, part in parts)]
        )

    found = {name: ordered(array) if array.dtype.kind == "f" else array for name, array in state.items()}
    if state and len(parts) < len(owned):
        found[PARAMETERS] = np.array([index for index, one in enumerate(owned) if not one.is_split], np.int32)
    return found


def _in_flat_order(run: Run, state: State) -> State:
    """The reverse. Trailing zeros may be missing, and parameters that were split, which get zeros."""
    owned = list(run.net.parameters.with_slices())
    indices = state.get(PARAMETERS, range(len(owned)))

    def flattened(values: np.ndarray) -> np.ndarray:
        flat, start = np.zeros(run.net.parameters.extent, np.float32), 0
        wholes = [math.prod(run.context.whole_shape(owned[index][0].blob)) for index in indices]
        values = np.concatenate([values, np.zeros(sum(wholes), np.float32)])
        for index, count in zip(indices, wholes, strict=True):
            parameter, part = owned[index]
            if not parameter.is_split:
                parameter.blob.logical(flat[part])[...] = values[start : start + count].reshape(parameter.blob.shape)
            start += count
        return flat

    arrays = {name: array for name, array in state.items() if name != PARAMETERS}
    return {name: flattened(array) if array.dtype.kind == "f" else array for name, array in arrays.items()}


def part_of_worker(
    held: Held, states: Sequence[State], rank: int, workers: int, streams: Callable[[], Sequence[int]] | None = None
) -> State | None:
    """What worker `rank` of `workers` takes over of the states of all workers of an earlier run, in order of ranks.

    `streams` has the number of streams of each present worker. Returns None if the states cannot be divided so.
    """
    if held is Held.ALIKE:
        return states[0]
    if len(states) == workers and (held is not Held.STREAMS or streams is None):
        return states[rank]
    if held is Held.SUM:
        return _sum(states[rank::workers], states[0])
    if held is not Held.STREAMS or streams is None:
        return None
    counts = list(streams())
    if sum(map(_streams, states)) != sum(counts):
        return None
    start = sum(counts[:rank])
    whole = {name: np.concatenate([state[name] for state in states], axis=1) for name in states[0]}
    return {name: array[:, start : start + counts[rank]] for name, array in whole.items()}


def _sum(states: Sequence[State], like: State) -> State:
    """The sum of each array of floats; 0 if there is none. Other values, such as counts, are the same for all."""
    return {
        name: sum((state[name] for state in states), np.zeros_like(array)) if array.dtype.kind == "f" else array
        for name, array in like.items()
    }


def _streams(state: State) -> int:
    return next(iter(state.values())).shape[1] if state else 0
