"""What all tests share: the golden folder, and nets and solvers from text."""

from __future__ import annotations

import ctypes
import functools
import gc
import signal
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.engines import find_onednn
from fcaffe.engines.base import EngineBase
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_net, upgrade_solver
from fcaffe.pycaffe import session
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from fcaffe.solvers.run import Run
from fcaffe.threads import available_cpus
from tests import engine_choice
from tests.engine_choice import ENGINES, engine

GOLDEN = Path(__file__).parent / "golden"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that ran the tests in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that programs under test do not ignore it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw-faults", type=float, default=10, metavar="SECONDS", help="draw faults of jobs for so long")
    parser.addoption("--draw-seed", type=int, default=1, metavar="N", help="the first seed of the draws")


_made: list[weakref.ref[Any]] = []


def _record(kind: type) -> None:
    """Let `_made` have a weak reference to each object of this class."""
    init: Any = kind.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def recorded(self: Any, *arguments: Any, **settings: Any) -> None:
        _made.append(weakref.ref(self))
        init(self, *arguments, **settings)

    kind.__init__ = recorded  # type: ignore[misc]


for kind in Net, Run, EngineBase:
    _record(kind)


def pytest_collection_finish() -> None:
    _made.clear()  # what modules have for all their tests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After the last test of a file: each net, solver and engine that its tests have made is collected.

    Those engines are not that serve the whole process, pycaffe's and the tests' own.
    """
    yield
    if item.session.testsfailed or (nextitem is not None and nextitem.path == item.path):
        return  # pytest keeps the frames of failed tests
    getattr(item, "funcargs", {}).clear()
    gc.collect()
    caches = gc.get_referents(session._engine_on, engine_choice._by_name)
    kept = {id(engine) for cache in caches if isinstance(cache, dict) for engine in cache.values()}
    left = [one for made in _made if (one := made()) is not None and id(one) not in kept]
    _made.clear()
    assert not left, f"nobody uses {left[:3]} any more, and {len(left)} such object(s) are not collected"


@pytest.fixture(params=ENGINES)
def on_each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "chosen", request.param)


@pytest.fixture(scope="session")
def openmp() -> ctypes.CDLL | None:
    """The OpenMP that oneDNN computes with."""
    path = find_onednn()
    return ctypes.CDLL(path) if path else None


@pytest.fixture
def all_threads(openmp: ctypes.CDLL | None) -> Iterator[None]:
    """oneDNN has a thread for each CPU, also where tests run beside others and compute with one thread."""
    before = openmp.omp_get_max_threads() if openmp else 1
    if openmp:
        openmp.omp_set_num_threads(available_cpus())
    yield
    if openmp:
        openmp.omp_set_num_threads(before)


@pytest.fixture
def golden() -> Path:
    return GOLDEN


@pytest.fixture(autouse=True)
def whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that quiets the log does not quiet those after it."""
    monkeypatch.setattr(log.lines, "_minimum", 0)
    monkeypatch.setattr(log.data, "_datatypes_told", set())


def make_net(text: str, phase: str = "TRAIN", seed: int = 1) -> Net:
    param = parse_text(text, pb.NetParameter)
    upgrade_net(param, "net")
    param.state.phase = pb.Phase.Value(phase)
    return Net(param, Context(engine(), CaffeRandom(seed)))


def net_of_layer(layer: str, *shapes: tuple[int, ...], tops: int = 0, phase: str = "TRAIN") -> Net:
    """A net of the layer "it" with bottoms "x0", "x1" ... of these shapes, and tops "y0", "y1" ..."""
    dims = [" ".join(f"dim: {n}" for n in shape) for shape in shapes]
    inputs = [
        f'layer {{ name: "in{i}" type: "Input" top: "x{i}" input_param {{ shape {{ {text} }} }} }}'
        for i, text in enumerate(dims)
    ]
    ends = [f'bottom: "x{i}"' for i in range(len(shapes))] + [f'top: "y{i}"' for i in range(tops)]
    return make_net(f'force_backward: true {"".join(inputs)} layer {{ name: "it" {" ".join(ends)} {layer} }}', phase)


@pytest.fixture
def net_from() -> Callable[..., Net]:
    """net_from(text, phase='TRAIN', seed=1)"""
    return make_net


@pytest.fixture
def solver_from(tmp_path: Path) -> Callable[..., Solver]:
    """solver_from(text, **fields): a solver whose snapshots go to the test's own folder."""

    def make(text: str, noise: str = "caffe", **fields: Any) -> Solver:
        param = parse_text(text, pb.SolverParameter)
        upgrade_solver(param, "solver")
        if not param.HasField("snapshot_prefix"):
            param.snapshot_prefix = str(tmp_path / "snap")
        for name, value in fields.items():
            setattr(param, name, value)
        return Solver(param, engine(), noise)

    return make
