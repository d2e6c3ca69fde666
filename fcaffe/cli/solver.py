"""`fcaffe solver`: shows the fields of a solver, with defaults, and its learning rate."""

from __future__ import annotations

import json
from typing import Any

import click

from fcaffe import log
from fcaffe.cli.flags import common_flags
from fcaffe.cli.table import bar
from fcaffe.cli.usage import Command
from fcaffe.proto import read_solver
from fcaffe.tools.solver_fields import rates, solver_fields


@click.command(
    cls=Command,
    example="solver solver.prototxt",
    help="Show every field of the solver SOLVER (a prototxt) with upgrades and defaults, and its learning rate over "
    "the iterations.",
)
@click.argument("solver")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@common_flags
def solver(solver: str, as_json: bool) -> int:
    with log.quiet():
        param = read_solver(solver)
    fields = solver_fields(param)
    if as_json:
        print(json.dumps(fields, indent=2))
    else:
        curve = rates(param)  # first, since it may refuse the policy
        _print(param, fields)
        _print_rates(param, curve)
    return 0


def _print(param: Any, fields: dict[str, Any]) -> None:
    width = max(map(len, fields))
    for name, value in fields.items():
        given = isinstance(value, list) or param.HasField(name)
        shown = value if isinstance(value, str) else json.dumps(value)
        print(f"{name:{width}}  {shown}{'' if given else '  (default)'}")


def _print_rates(param: Any, curve: list[tuple[int, float]]) -> None:
    if not curve:
        return
    print(f"\nLearning rate ({param.lr_policy}), up to iteration {param.max_iter}:")
    width = max(len("iteration"), len(str(param.max_iter)))
    print(f"{'iteration':>{width}}  {'rate':12}")
    largest = max(rate for _, rate in curve)
    for iteration, rate in curve:
        print(f"{iteration:>{width}}  {log.number(rate):12}  {bar(rate / largest if largest > 0 else 0)}".rstrip())
