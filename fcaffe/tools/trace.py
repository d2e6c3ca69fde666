"""Traces of a training in Chrome's format, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcaffe.errors import UsageError
from fcaffe.net.workers import Workers
from fcaffe.output_files import remove_leftovers, replacing, temporary_name
from fcaffe.timeline import EXCHANGE, TRAINING, Event, Timeline

THREADS = {TRAINING: "training", EXCHANGE: "gradient exchange"}


def check_writable(path: str) -> None:
    """Raises UsageError if no file can be written at `path`."""
    target = Path(os.path.realpath(path))
    remove_leftovers(str(target))
    probe = target.with_name(temporary_name(target.name))
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise UsageError(f"--trace {path}: cannot write there ({problem.strerror}); name another file") from problem


def begin_together(timeline: Timeline, workers: Workers) -> None:
    """Start the timelines of all workers at the same moment, up to the latency of a message. Their clocks differ."""
    for _ in range(3):  # the first may wait for a late worker, and is slower
        workers.sum(0)
    timeline.begin()


def gather(timeline: Timeline, workers: Workers, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Chrome's events of all workers at worker 0, and none at the others. Collective."""
    everyone = workers.gather(_since_beginning(timeline)) or []
    return [line for rank, events in enumerate(everyone) for line in _events_of(rank, hosts[rank], events)]


def own_events(timeline: Timeline, rank: int, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Chrome's events of this worker alone."""
    return _events_of(rank, hosts[rank], _since_beginning(timeline))


def _since_beginning(timeline: Timeline) -> list[tuple[Any, ...]]:
    """The events as tuples, which are smaller in a message."""
    return [
        (event.name, event.thread, event.begin - timeline.origin, event.end - timeline.origin, event.iteration)
        for event in list(timeline.events)
    ]


def write(path: str, events: list[dict[str, Any]]) -> None:
    with replacing(path, "trace") as temporary, open(temporary, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def _events_of(rank: int, host: str, events: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Names of process and threads, and complete events ("X"). Times are in microseconds."""
    lines: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank} on {host}"}},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
    ]
    threads = {event[1] for event in events} | {TRAINING}
    for thread in sorted(threads):
        lines.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": THREADS[thread]}})
    for name, thread, begin, end, iteration in sorted((Event(*event) for event in events), key=lambda e: e.begin):
        lines.append(
            {
                "ph": "X",
                "name": name,
                "pid": rank,
                "tid": thread,
                "ts": round(1e6 * begin, 1),
                "dur": round(1e6 * (end - begin), 1),
                "args": {"iteration": iteration},
            }
        )
    return lines
