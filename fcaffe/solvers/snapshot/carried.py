"""What a run carries from one iteration to the next besides weights and history: collected, and put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.net.blob import Array
from fcaffe.net.state import Held, State, part_of_worker
from fcaffe.net.workers import Workers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.run import Run
from fcaffe.solvers.snapshot.state_files import CarriedArray

Place = tuple[str, str]  # a net, "" for none, and who in it carries something

TRAIN = "train"
RANDOM, LOSS, EXCHANGE, ENGINE = (("", name) for name in ("random", "loss", "exchange", "engine"))
GATHERED = 1 << 26  # bytes that a worker sends at a time


@dataclass
class Point:
    """Where one worker of a run stands: its random streams, and the states of all that carry one.

    Arrays of the exchange may be the live ones; `copy` makes a Point that lasts.
    """

    seed: int
    noise: str
    random: bytes
    states: dict[Place, State]

    @classmethod
    def of(cls, run: Run) -> Point:
        context = run.context
        states = {place: owner.state() for place, owner in owners(run).items()}
        return cls(context.seed, context.noise, context.random.state(), states)

    def copy(self) -> Point:
        states = {place: {name: array.copy() for name, array in s.items()} for place, s in self.states.items()}
        return Point(self.seed, self.noise, self.random, states)

    def put_back(self, run: Run) -> None:
        """Let this worker go on from here."""
        _set_random(run, self.seed, self.random)
        for place, owner in owners(run).items():
            if state := self.states.get(place):
                owner.restore_state(state)


def owners(run: Run) -> dict[Place, Any]:
    """All that may carry something, in the same order on all workers."""
    nets = {TRAIN: run.net} | {f"test {index}": net for index, net in enumerate(run.test_nets)}
    found: dict[Place, Any] = {(name, layer.name): layer for name, net in nets.items() for layer in net.layers}
    return found | {LOSS: run.smoothed, EXCHANGE: run.exchange, ENGINE: run.engine}


def collect(run: Run, point: Point) -> tuple[Any, list[CarriedArray]]:
    """The ResumeState of a run, and the arrays that go with it, from the Points of all workers.

    All workers call this, and what it gives is complete on worker 0 alone.
    """
    resume = pb.ResumeState(seed=point.seed, noise=point.noise, random=point.random)
    carried: list[CarriedArray] = []
    for place, owner in owners(run).items():
        held, state = _held(owner), point.states.get(place, {})
        if _is_reader(place, held, state):
            random = state["random"].tobytes()
            resume.reader.add(net=place[0], layer=place[1], position=int(state["position"]), random=random)
            continue
        if place == EXCHANGE:
            state = {name: _in_order_of_parameters(run, array) for name, array in state.items()}
        everyones = [state] if held is Held.ALIKE else _gather(run.workers, state, held)
        for worker, state in enumerate(everyones):
            carried += [CarriedArray(*place, worker, name, np.asarray(array)) for name, array in state.items()]
    for worker, random in enumerate(run.workers.gather(point.random) or []):
        if random != point.random:  # they draw for shares of different sizes
            carried.append(CarriedArray(*RANDOM, worker, "state", np.frombuffer(random, np.uint8)))
    return resume, carried


def put_back(run: Run, resume: Any, carried: list[CarriedArray], path: str) -> None:
    """Let the run go on from what `collect` gave. Whoever cannot take over what it carried is named in the log.

    All workers call this.
    """
    workers, then = run.workers, resume.made_with.workers or 1
    states: dict[Place, list[State]] = {}
    for reader in resume.reader:
        random = np.frombuffer(reader.random, np.uint8)
        states[reader.net, reader.layer] = [{"position": np.array(reader.position, np.int64), "random": random}]
    for array in carried:
        everyones = states.setdefault((array.net, array.owner), [{} for _ in range(then)])
        if 0 <= array.worker < then:
            everyones[array.worker][array.name] = array.values
    randoms = states.get(RANDOM, [{}] * then)
    own = randoms[workers.rank] if workers.size == then else {}
    _set_random(run, resume.seed, own["state"].tobytes() if own else resume.random)
    anew = [place for place, owner in owners(run).items() if not _hand_over(run, place, owner, states, resume)]
    if anew:
        names = ", ".join(_name(*place) for place in anew)
        log.warning(f"{path}, of a run of {then} worker(s), has no state that fits {names}: begun anew")


def _hand_over(run: Run, place: Place, owner: Any, states: dict[Place, list[State]], resume: Any) -> bool:
    """Give the owner the state of its place; False if it has to begin anew, and something is lost by that."""
    workers, held, everyones = run.workers, _held(owner), states.get(place, [])
    if place == EXCHANGE and _scheme(resume.made_with.compression) != _scheme(run.exchange.compression):
        return not everyones
    now = owner.state()
    if not now:
        return True
    of_all = (lambda: _streams_of_all(workers, now)) if place[0] == TRAIN else None  # test nets have whole batches
    state = part_of_worker(held, everyones, workers.rank, workers.size, of_all) if everyones else None
    if place == EXCHANGE and state:
        state = {name: _in_flat_order(run, array) for name, array in state.items()}
    if state and held is Held.STREAMS and any(array.shape != now[name].shape for name, array in state.items()):
        state = None
    if state:
        owner.restore_state(state)
        return True
    is_empty = bool(everyones) and not any(array.any() for state in everyones for array in state.values())
    return is_empty or held is Held.MEAN or place in (LOSS, ENGINE)


def _scheme(compression: str) -> str:
    """The scheme without its options."""
    return compression.partition(":")[0]


def _held(owner: Any) -> Held:
    return getattr(owner, "held", Held.ALIKE)  # an engine, which knows nothing of workers, has what all have


def _is_reader(place: Place, held: Held, state: State) -> bool:
    """Whether the state is that of a layer that reads records, for which there is a message of its own."""
    return bool(place[0]) and held is Held.ALIKE and state.keys() == {"position", "random"}


def _gather(workers: Workers, state: State, held: Held) -> list[State]:
    """At worker 0 the states of all, in order of ranks; elsewhere nothing. Large arrays, which only sums are, travel
    in pieces."""
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


def _streams_of_all(workers: Workers, state: State) -> list[int]:
    own = next(iter(state.values())).shape[1] if state else 0
    return workers.broadcast_object(workers.gather(own))


def _in_order_of_parameters(run: Run, flat: Array) -> np.ndarray:
    """The values of a flat buffer in the order that files have, which does not depend on the engine's layout."""
    if flat.dtype.kind != "f":
        return flat
    owned = zip(run.net.parameters.owned, run.net.parameters.slices(), strict=True)
    values = [parameter.blob.logical(flat[part]).reshape(-1) for parameter, part in owned]
    return np.concatenate([np.zeros(0, np.float32), *values])


def _in_flat_order(run: Run, values: np.ndarray) -> np.ndarray:
    """The reverse. Trailing zeros may be missing."""
    if values.dtype.kind != "f":
        return values
    flat, start = np.zeros(run.net.parameters.extent, np.float32), 0
    values = np.concatenate([values, np.zeros(flat.size, np.float32)])
    for parameter, part in zip(run.net.parameters.owned, run.net.parameters.slices(), strict=True):
        blob = parameter.blob
        blob.logical(flat[part])[...] = values[start : start + blob.count].reshape(blob.shape)
        start += blob.count
    return flat


def _set_random(run: Run, seed: int, random: bytes) -> None:
    for net in (run.net, *run.test_nets):
        net.context.seed = seed
    run.context.random.set_state(random)


def _name(net: str, owner: str) -> str:
    return f'layer "{owner}" of the {net} net' if net else f"the {owner} of gradients"
