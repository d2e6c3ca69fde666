"""Traces of a training in Chrome's format, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fcaffe.net.workers import Workers
from fcaffe.output_files import replacing
from fcaffe.timeline import EXCHANGE, TRAINING, Timeline

THREADS = {TRAINING: "training", EXCHANGE: "gradient exchange"}


def begin_together(timeline: Timeline, workers: Workers) -> None:
    """Start the timelines of all workers at the same moment, up to the latency of a message. Their clocks differ."""
    for _ in range(3):  # the first may wait for a late worker, and is slower
        workers.sum(0)
    timeline.begin()


def events_of(timeline: Timeline, rank: int, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return Chrome's events of this worker: names of process and threads, and complete events ("X").

    Times are in microseconds since the beginning.
    """
    events = sorted(timeline.events, key=lambda event: event.begin)
    names = {"name": f"rank {rank} on {hosts[rank]}"}
    lines: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": names},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
    ]
    for thread in sorted({event.thread for event in events} | {TRAINING}):
        lines.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": THREADS[thread]}})
    for name, thread, begin, end, iteration in events:
        lines.append(
            {
                "ph": "X",
                "name": name,
                "pid": rank,
                "tid": thread,
                "ts": round(1e6 * (begin - timeline.origin), 1),
                "dur": round(1e6 * (end - begin), 1),
                "args": {"iteration": iteration},
            }
        )
    return lines


def write(path: str, events: list[dict[str, Any]]) -> None:
    """Write the file of a trace. Raises FcaffeError."""
    with replacing(path, "trace") as temporary, open(temporary, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
