import pytest

from fcaffe.data import starvation
from fcaffe.data.starvation import Starvation


@pytest.fixture
def clock(monkeypatch):
    """clock(seconds) lets them pass."""
    now = [1000.0]
    monkeypatch.setattr(starvation.time, "monotonic", lambda: now[0])

    def tick(seconds):
        now[0] += seconds

    return tick


def run(seen, clock, waited, batches, step=1.0):
    for _ in range(batches):
        clock(step)
        seen.observe(waited, reading=0.5)


def test_tells_who_waits_how_long_and_what_helps(clock, capfd, monkeypatch):
    monkeypatch.setattr(starvation, "decoding_threads", lambda: 2)
    run(Starvation('layer "data"', 4), clock, waited=0.3, batches=20)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("W")
    assert 'layer "data" starves the net, which waited for it 6 of the last 20 s' in line
    assert "takes 0.5 s to read and decode with 2 threads" in line
    assert "more CPUs" in line and "data_param.prefetch (4)" in line


def test_is_silent_for_a_while_after_a_line(clock, capfd):
    seen = Starvation("it", 4)
    run(seen, clock, waited=0.3, batches=100)
    assert capfd.readouterr().err.count("starves") == 1
    run(seen, clock, waited=0.3, batches=600)
    assert capfd.readouterr().err.count("starves") == 1


def test_is_silent_when_little_is_waited_or_little_was_seen(clock, capfd):
    run(Starvation("it", 4), clock, waited=0.04, batches=200)
    run(Starvation("it", 4), clock, waited=0.9, batches=19)
    assert not capfd.readouterr().err


def test_counts_only_the_last_seconds(clock, capfd):
    seen = Starvation("it", 4)
    run(seen, clock, waited=0.0, batches=400)
    run(seen, clock, waited=0.9, batches=20)
    assert capfd.readouterr().err.count("starves") == 1
