"""Statistics and Markdown table of the measurements of hosts.py."""

from __future__ import annotations

import math
import statistics
from typing import Any

from competitors import markdown
from emulated import bits_per_second

HEAD = (
    "net", "batch", "hosts", "rate", "fcaffe auto ms", "tree ms", "server ms", "16 bits ms", "DDP ms (MB)",
    "DDP / auto", "DDP in 16 bits ms (MB)", "exposed ms", "not to be hidden ms", "wait for others",
)  # fmt: skip

REDUCTIONS = ("auto", "tree", "server")  # those with a column
SHORT = "ddp in 16 bits"
SLOWER = 1.1  # bucket sizes that take this much of the best one's time are dropped if memory is short


def sum_ms(count: float, hosts: int, rate: str) -> float:
    """Milliseconds of an all-reduce of `count` bytes, if each link carries the fewest possible bytes at its rate."""
    return 1000 * 8 * count * 2 * (hosts - 1) / hosts / bits_per_second(rate)


def not_hidden_ms(buckets: list[int], backward_ms: float, hosts: int, rate: str) -> float:
    """Milliseconds of the sums at the links' rate that cannot overlap with backward.

    These are the larger of two times: that of the last bucket, which is full when backward ends, and that by which all
    sums take longer than backward.
    """
    if not buckets:
        return 0.0
    whole = sum_ms(sum(buckets), hosts, rate)
    return max(sum_ms(buckets[-1], hosts, rate), whole - backward_ms)


def kind_of(name: str) -> str:
    """The kind of a contender: fcaffe, ddp, or ddp in 16 bits."""
    kind = name.partition("-")[0]
    return SHORT if kind == "ddp" and name.endswith("-fp16") else kind


def row_of(result: dict[str, Any]) -> dict[str, Any]:
    """The entries of a table's row.

    `ddp` and `ddp_short` are the names of the fastest DDP in 32 and in 16 bits. `ratio` is the time of `ddp` over that
    of fcaffe's first contender, usually auto: above 1 fcaffe is faster. The shares of the time are of that contender.
    """
    contenders = result["contenders"]
    ours = next((name for name in contenders if name.startswith("fcaffe")), "")
    theirs, short = (
        {name: each["seconds"] for name, each in contenders.items() if kind_of(name) == kind} for kind in ("ddp", SHORT)
    )
    row: dict[str, Any] = {"ms": {name: 1000 * each["seconds"] for name, each in contenders.items()}}
    if theirs:
        row["ddp"] = min(theirs, key=lambda name: theirs[name])
    if short:
        row["ddp_short"] = min(short, key=lambda name: short[name])
    if ours:
        of = contenders[ours]
        split = {kind: 1000 * seconds for kind, seconds in of["split"].items() if seconds}
        row["split_ms"], row["exposed_ms"] = split, 1000 * of["exposed"]
        row["sums_ms"] = 1000 * of["sums"]
        row["wait_share"] = of["split"]["wait for others"] / sum(of["split"].values())
        row["not_hidden_ms"] = not_hidden_ms(
            of["bucket_bytes"], split.get("backward", 0.0), result["hosts"], result["rate"]
        )
    if ours and theirs:
        row["ratio"] = theirs[row["ddp"]] / contenders[ours]["seconds"]
    return row


def without_slow_ddp(names: list[str], turns: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The contenders without the slow bucket sizes of DDP.

    The best turn of these takes SLOWER times that of the best bucket size in as many bits.
    """
    best = {name: min(turn["seconds"] for turn in turns[name]) for name in names}
    fastest = {
        kind: min((best[name] for name in names if kind_of(name) == kind), default=0.0) for kind in ("ddp", SHORT)
    }
    return [name for name in names if best[name] < SLOWER * fastest.get(kind_of(name), math.inf)]


def median_of(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number of the turns, and the last of all other values."""
    result: dict[str, Any] = {}
    for key, value in turns[-1].items():
        values = [turn[key] for turn in turns]
        if isinstance(value, dict):
            result[key] = median_of(values)
        else:
            result[key] = statistics.median(values) if isinstance(value, float) else value
    return result


def table(results: list[dict[str, Any]]) -> str:
    rows = []
    for r in results:
        ms = {name.removeprefix("fcaffe-"): f"{value:.1f}" for name, value in r["ms"].items()}
        ddp, in_16_bits = (
            f"{ms[r[which]]} ({r[which].split('-')[1]})" if which in r else "" for which in ("ddp", "ddp_short")
        )
        numbers = [
            f"{r['ratio']:.2f}" if "ratio" in r else "",
            in_16_bits,
            f"{r['exposed_ms']:.1f}" if "exposed_ms" in r else "",
            f"{r['not_hidden_ms']:.1f}" if "not_hidden_ms" in r else "",
            f"{r['wait_share']:.1%}" if "wait_share" in r else "",
        ]
        cells = [r["net"], str(r["batch"]), str(r["hosts"]), r["rate"]]
        cells += [ms.get(name, "") for name in REDUCTIONS]
        others = (name for name in ms if name not in REDUCTIONS and not name.startswith("ddp"))
        cells.append(", ".join(f"{ms[name]} ({name})" for name in others))
        rows.append([*cells, ddp, *numbers])
    return markdown(HEAD, rows)
