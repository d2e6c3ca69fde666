"""The results of gpu.py as Markdown."""

from __future__ import annotations

import json
import math as numbers
from pathlib import Path
from typing import Any

from competitors import markdown
from gpu_racers import PEERS
from nets import NETS, Cell


def pages(results: dict[str, Any]) -> str:
    """All results as Markdown."""
    peaks = ", ".join(f"{rate:.3g} TFLOP/s in {math}" for math, rate in results["peak_tflops"].items())
    parts = [results["machine"] + (f"; products of large matrices: {peaks}" if peaks else "")]
    if results["rows"]:
        parts += [table(results["rows"]), summary(results["rows"])]
    if results["recompute"]:
        parts.append(recompute_table(results["recompute"]))
    failures = [
        f"- {who} on {row['net']}, batch {row['batch']}, {row['step']}, {row['math']}: {one['failure']}"
        for row in results["rows"] + results["recompute"]
        for who, one in row.items()
        if isinstance(one, dict) and "failure" in one
    ]
    if failures:
        parts.append("\n".join(["Failed:", "", *failures]))
    if results["not_measured"]:
        missed = "\n".join(f"- {cell}" for cell in results["not_measured"])
        parts.append(f"Not measured, since the time was up:\n\n{missed}")
    return "\n\n".join(filter(None, parts))


def table(rows: list[dict[str, Any]]) -> str:
    peers = [peer for peer in PEERS if any(peer in row for row in rows)]
    names = ["fcaffe", *peers]
    head = ["net", "batch", "step", "math", *(f"{name} img/s" for name in names), "ratio", "TFLOP/s", "of peak"]
    head += [*(f"{name} MiB" for name in names), *(f"{name} first s" for name in names)]
    lines = []
    for row in rows:
        cells = [row["net"], str(row["batch"]), row["step"], row["math"]]
        cells += [shown(row.get(name), "images_per_s", "{:.0f}") for name in names]
        cells.append(f"{row['ratio']:.2f}" if "ratio" in row else "")
        cells.append(f"{row['tflops']:.1f}" if "tflops" in row else "")
        cells.append(f"{100 * row['of_peak']:.0f} %" if "of_peak" in row else "")
        cells += [shown(row.get(name), "device_mib", "{:.0f}") for name in names]
        cells += [shown(row.get(name), "first_step_s", "{:.1f}") for name in names]
        lines.append(cells)
    return markdown(head, lines)


def shown(one: dict[str, Any] | None, key: str, form: str) -> str:
    if not one:
        return ""
    if key in one:
        return form.format(one[key])
    return "failed" if key == "images_per_s" and "failure" in one else ""


def summary(rows: list[dict[str, Any]]) -> str:
    """The ratios of each kind of row, and the gain of bf16 over TF32."""
    lines = []
    kinds = {(row["step"], row["batch"], row["math"]): None for row in rows}
    for kind in kinds:
        ratios = {row["net"]: row["ratio"] for row in rows if _kind(row) == kind and "ratio" in row}
        if ratios:
            mean = numbers.exp(sum(map(numbers.log, ratios.values())) / len(ratios))
            each = ", ".join(f"{net} {ratio:.2f}" for net, ratio in sorted(ratios.items(), key=lambda item: item[1]))
            lines.append(f"- {kind[0]}, batch {kind[1]}, {kind[2]}: {mean:.2f} times the faster PyTorch ({each})")
    speeds = {(*_kind(row), row["net"]): row["fcaffe"].get("images_per_s") for row in rows}
    for (step, batch), _ in {(kind[0], kind[1]): None for kind in kinds}.items():
        gains = []
        for net in NETS:
            half, own = (speeds.get((step, batch, math, net)) for math in ("bf16", "tf32"))
            if half and own:
                gains.append(f"{net} {half / own:.2f}")
        if gains:
            lines.append(f"- {step}, batch {batch}: bf16 over TF32, both by fcaffe: {', '.join(gains)}")
    return "\n".join(lines)


def _kind(row: dict[str, Any]) -> tuple[str, int, str]:
    return row["step"], row["batch"], row["math"]


def recompute_table(rows: list[dict[str, Any]]) -> str:
    """Time and memory with --recompute. Activations are all memory besides parameters, gradients and histories."""
    head = ["net", "batch", "math", "ms", "ms with --recompute", "time", "activations MiB", "with --recompute", "saved"]
    head += ["saved as planned", "same gradients"]
    lines = []
    for row in rows:
        times = [shown(row[who], "ms", "{:.1f}") or "failed" for who in ("fcaffe", "recompute")]
        memory = [f"{mib:.0f}" for mib in row.get("activations_mib", ())] or ["", ""]
        saved = [f"{100 * row[key]:.0f} %" if key in row else "" for key in ("saved", "saved_as_planned")]
        more = f"{row['time']:.2f}" if "time" in row else ""
        same = {True: "yes", False: "no", None: ""}[row.get("same_gradients")]
        lines.append([row["net"], str(row["batch"]), row["math"], *times, more, *memory, *saved, same])
    return markdown(head, lines)


def merged(files: list[str]) -> dict[str, Any]:
    """The results of several runs as those of one. A cell counts as measured if one of the runs has it."""
    runs = [json.loads(Path(file).read_text()) for file in files]
    whole = dict(runs[0])
    for run in runs[1:]:
        for key in ("rows", "recompute", "not_measured"):
            whole[key] = whole[key] + run[key]
        whole["peak_tflops"] = {**run["peak_tflops"], **whole["peak_tflops"]}
    measured = {str(Cell(*(row[key] for key in ("net", "batch", "step", "math")))) for row in whole["rows"]}
    whole["not_measured"] = [cell for cell in dict.fromkeys(whole["not_measured"]) if cell not in measured]
    return whole
