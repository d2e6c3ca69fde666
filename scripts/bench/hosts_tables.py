"""What hosts.py makes of the turns of its contenders, and prints."""

from __future__ import annotations

import math
import statistics
from typing import Any

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
HEAD = (
    "net", "batch", "hosts", "rate", "fcaffe auto ms", "tree ms", "server ms", "16 bits ms", "DDP ms (MB)",
    "DDP / auto", "DDP in 16 bits ms (MB)", "exposed ms", "not to be hidden ms", "wait for others",
)  # fmt: skip

REDUCTIONS = ("auto", "tree", "server")  # that have a column
SHORT = "ddp in 16 bits"
SLOWER = 1.1  # times as much as the best of DDP's takes who is out where contenders are started anew for each turn


def bits_per_second(rate: str) -> float:
    """Of a rate as tc has it: 100mbit."""
    unit = next(unit for unit in UNITS if rate.endswith(unit))
    return float(rate.removesuffix(unit)) * UNITS[unit]


def sum_ms(count: float, hosts: int, rate: str) -> float:
    """Of `count` bytes on every host, if each link carries the least bytes that an all-reduce needs, at its rate."""
    return 1000 * 8 * count * 2 * (hosts - 1) / hosts / bits_per_second(rate)


def not_hidden_ms(buckets: list[int], backward_ms: float, hosts: int, rate: str) -> float:
    """What backward cannot hide of sums at the links' rate: the last bucket's, which is full when backward ends, or,
    if that is more, what of all sums takes longer than the whole of backward."""
    if not buckets:
        return 0.0
    whole = sum_ms(sum(buckets), hosts, rate)
    return max(sum_ms(buckets[-1], hosts, rate), whole - backward_ms)


def kind_of(name: str) -> str:
    """Of a contender: fcaffe, ddp, or ddp in 16 bits."""
    kind = name.partition("-")[0]
    return SHORT if kind == "ddp" and name.endswith("-fp16") else kind


def row_of(result: dict[str, Any]) -> dict[str, Any]:
    """What the numbers of a race come to: `ddp` and `ddp_short`, the names of the better DDP in 32 and in 16 bits;
    `ratio`, the former's time over that of fcaffe's auto (above 1: fcaffe is faster); of auto, or of fcaffe's first
    contender, the shares of its time."""
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
    """The contenders but for those of DDP whose best turn is clearly slower than that of its best bucket size, in as
    many bits."""
    best = {name: min(turn["seconds"] for turn in turns[name]) for name in names}
    fastest = {
        kind: min((best[name] for name in names if kind_of(name) == kind), default=0.0) for kind in ("ddp", SHORT)
    }
    return [name for name in names if best[name] < SLOWER * fastest.get(kind_of(name), math.inf)]


def median_of(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each number that the turns have, the median; of anything else the last."""
    result: dict[str, Any] = {}
    for key, value in turns[-1].items():
        values = [turn[key] for turn in turns]
        if isinstance(value, dict):
            result[key] = median_of(values)
        else:
            result[key] = statistics.median(values) if isinstance(value, float) else value
    return result


def table(results: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
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
        lines.append(f"| {' | '.join([*cells, ddp, *numbers])} |")
    return "\n".join(lines)
