"""Whatever is sent over links arrives, in order, and is confirmed; a peer that does not read delays no other."""

from __future__ import annotations

import copy
import os
import random
import socket
import time
from collections.abc import Callable

import pytest

from fcaffe.jobs import output
from fcaffe.jobs.carrier import Carrier
from fcaffe.jobs.channel import Status
from fcaffe.jobs.frames import END, MESSAGE, STDOUT, FrameError, Frames, Lines, frame
from fcaffe.jobs.loop import Link, Loop, two_of
from fcaffe.jobs.output import Backlog
from fcaffe.parallel.watchdog import STATES, Doing

Parts = list[tuple[int, bytes]]


def turn_until(loop: Loop, true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end:
        loop.turn(0.01)
    assert true()


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_any_size_arrive_in_order(seed: int) -> None:
    chance, loop = random.Random(seed), Loop()
    ends = socket.socketpair()
    got: list[Parts] = [[], []]
    links = [
        Link(loop, *two_of(end), lambda *part, own=own: own.append(part)) for end, own in zip(ends, got, strict=True)
    ]
    sent: list[Parts] = [[], []]
    for _ in range(40):
        size = chance.choice([0, 1, 100, 70_000, 3_000_000])
        part, side = (chance.choice([MESSAGE, STDOUT]), os.urandom(size)), chance.randrange(2)
        sent[1 - side].append(part)
        links[side].send(*part)
    turn_until(loop, lambda: not links[0].unconfirmed and not links[1].unconfirmed)
    assert got == sent
    links[0].close()
    turn_until(loop, lambda: not links[1].open)
    assert got[1][-1] == (END, b"")


def test_a_peer_that_does_not_read_delays_no_other() -> None:
    loop, got = Loop(), list[int]()
    (asleep, _other_end), (awake, reader) = socket.socketpair(), socket.socketpair()
    stuck = Link(loop, *two_of(asleep), lambda *_: None)
    link = Link(loop, *two_of(awake), lambda *_: None)
    peer = Link(loop, *two_of(reader), lambda kind, content: got.append(len(content)))
    for _ in range(20):
        stuck.send(STDOUT, bytes(1 << 20))
        link.send(STDOUT, bytes(1 << 20))
    turn_until(loop, lambda: not link.unconfirmed)
    assert got == [1 << 20] * 20 and stuck.unconfirmed > 20 << 20
    for one in (stuck, link, peer):
        one.close()
    _other_end.close()


def test_a_stream_in_any_pieces_is_the_same() -> None:
    parts = [(-1, b"Warning: a banner\n"), (MESSAGE, b"{}"), (STDOUT, b"\0\n\xff"), (-1, b"more\n"), (MESSAGE, b"")]
    stream = b"".join(frame(*part) for part in parts)
    for size in range(1, len(stream) + 1):
        frames = Frames()
        found = [part for at in range(0, len(stream), size) for part in frames.feed(stream[at : at + size])]
        assert found == parts
    with pytest.raises(FrameError):
        Frames().feed(b"\0\xff" + bytes(9))


def test_output_that_nobody_reads_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MOST", 1000)
    backlog = Backlog()
    for _ in range(5):
        backlog.put(b"\xc3\xa9" * 200)
    taken = b"".join(iter(backlog.take, b""))
    assert taken.startswith(b"\xc3\xa9" * 400) and b"fcaffe: 1200 bytes of output were dropped here" in taken
    backlog.put(b"more")
    assert backlog.take() == b"more" and not backlog.take() and not backlog.length


def test_lines_are_cut_behind_lines() -> None:
    lines = Lines()
    assert [lines.feed(text) for text in (b"a\nb", b"c", b"\n\nd", b"")] == [
        [(-1, b"a\n")],
        [],
        [(-1, b"bc\n\n")],
        [(-1, b"d")],
    ]


@pytest.mark.parametrize("silent", [False, True])
def test_a_carrier_knows_whether_the_far_end_lives(silent: bool) -> None:
    """Two carriers, between ends that say nothing; one carrier alone gives up."""
    (near, _launcher), (far, other) = socket.socketpair(), socket.socketpair()
    carrier = Carrier(two_of(near), two_of(far), first=1.5, silence=1.5)
    carrier.loop.every(0.1, lambda passed: None if silent else other.send(frame(4, b"")))
    carrier.loop.every(4.0, lambda passed: carrier.near.close())
    assert carrier.run() is silent
    _launcher.close()
    other.close()


def test_a_status_is_read_as_it_was_written() -> None:
    rank = Status()
    agent = copy.copy(rank)  # as after a fork
    assert agent.read() is None
    for doing in [Doing(state, waits, "é" * 60, 7) for state in STATES for waits in (False, True)]:
        rank.write(doing)
        assert agent.read() == doing._replace(operation="é" * 48)
        assert agent.read() is None
