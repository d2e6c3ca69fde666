"""When a waiting rank polls, when it sleeps and for how long, on a machine of the test's own."""

import pytest

from fcaffe.parallel import waiting


class Machine:
    """`shared`: another takes the core whenever it is offered. `heard`: what comes of each look at the descriptors."""

    def __init__(self, shared: bool, heard: list[bool]) -> None:
        self.shared, self.heard = shared, heard
        self.now, self.offers, self.sleeps = 0.0, 0, []

    def perf_counter(self) -> float:
        return self.now

    def offer_core(self) -> None:
        self.offers += 1
        self.now += 1e-3 if self.shared else 1e-6

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)

    def select(self, *arguments):
        self.sleeps.append(arguments[-1])
        return [[0]] if self.heard.pop(0) else [[]]


def wait(monkeypatch, machine: Machine, sleeps: int = 1, by_message: bool = True) -> Machine:
    """Wait for what comes in so many sleeps."""
    for name in ("time", "select"):
        monkeypatch.setattr(waiting, name, machine)
    monkeypatch.setattr(waiting, "_offer_core", machine.offer_core)
    waiting.wait_until(lambda: len(machine.sleeps) >= sleeps, by_message)
    return machine


@pytest.fixture(autouse=True)
def _wakes(monkeypatch):
    """Sleeps that messages have ended so far."""
    monkeypatch.setattr(waiting, "_longest", waiting.PATIENT)


def test_polls_as_long_as_nobody_wants_the_core(monkeypatch):
    assert wait(monkeypatch, Machine(False, [True])).offers == waiting.FEW
    assert wait(monkeypatch, Machine(True, [True])).offers == 1


@pytest.mark.parametrize("late", [True, False])
def test_patience(monkeypatch, late):
    """A message that has come by the end of a sleep would have ended it; one that is not heard of ends none."""
    wait(monkeypatch, Machine(True, [False, late]))
    following = wait(monkeypatch, Machine(True, [True]))
    assert (following.sleeps == [waiting.PATIENT]) is late
    assert (following.offers == 1) is late


def test_what_no_message_tells_is_looked_for_often(monkeypatch):
    assert max(wait(monkeypatch, Machine(True, []), 10, by_message=False).sleeps) <= waiting.LONGEST
