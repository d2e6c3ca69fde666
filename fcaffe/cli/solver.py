"""`fcaffe solver`: shows the fields of a solver, with defaults, and its learning rate."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import click
from google.protobuf import json_format

from fcaffe import log
from fcaffe.cli.flags import command
from fcaffe.cli.table import bar, say
from fcaffe.proto import read_solver
from fcaffe.solvers.learning_rate import learning_rate, warm_up_end

SAMPLES = 16
FIRST_OWN_NUMBER = 100000  # of the fields that BVLC Caffe's schema does not have


@command(
    example="solver solver.prototxt",
    help="Show every field of the solver SOLVER (a prototxt) with upgrades and defaults, and its learning rate over "
    "the iterations.",
)
@click.argument("solver")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def solver(solver: str, as_json: bool) -> int:
    with log.quiet():
        param = read_solver(solver)
    fields = solver_fields(param)
    if as_json:
        print(json.dumps(fields, indent=2))
    else:
        curve = rates(param)  # first, since it may refuse the policy
        width = max(map(len, fields))
        for name, value in fields.items():
            given = isinstance(value, list) or param.HasField(name)
            shown = value if isinstance(value, str) else json.dumps(value)
            say(f"{name:{width}}  {shown}{'' if given else '  (default)'}")
        _print_rates(param, curve)
    return 0


def _print_rates(param: Any, curve: list[tuple[int, float]]) -> None:
    if not curve:
        return
    print()
    say(f"Learning rate ({param.lr_policy}), up to iteration {param.max_iter}:")
    width = max(len("iteration"), len(str(param.max_iter)))
    say(f"{'iteration':>{width}}  {'rate':12}")
    largest = max((rate for _, rate in curve if math.isfinite(rate)), default=0)
    for iteration, rate in curve:
        share = rate / largest if largest > 0 and math.isfinite(rate) else 0
        say(f"{iteration:>{width}}  {log.number(rate):12}  {bar(share)}".rstrip())


def solver_fields(param: Any) -> dict[str, Any]:
    """Field name to value, in the order of the schema, as JSON has it.

    Fields that are not given are there with their default, if they are numbers, booleans or enums, or have one in the
    schema. Of the fields that BVLC Caffe lacks, only given ones are there.
    """
    whole = type(param)()
    for field in param.DESCRIPTOR.fields:
        plain = field.has_default_value or field.cpp_type not in (field.CPPTYPE_STRING, field.CPPTYPE_MESSAGE)
        if plain and field.number < FIRST_OWN_NUMBER and not hasattr(getattr(whole, field.name), "extend"):
            setattr(whole, field.name, field.default_value)
    whole.MergeFrom(param)
    whole.ClearField("solver_type")  # reading a solver turns it into `type`
    found = json_format.MessageToDict(whole, preserving_proto_field_name=True)
    found["random_seed"] = int(found["random_seed"])  # JSON's numbers have no 64 bits
    return {field.name: found[field.name] for field in param.DESCRIPTOR.fields if field.name in found}


def rates(param: Any) -> list[tuple[int, float]]:
    """(iteration, rate) at each change of the rate, or at SAMPLES even distances if it changes more often than that."""
    last, warm = param.max_iter - 1, warm_up_end(param)
    drops = list(_drops(param.stepvalue, warm))
    changes: Iterable[int] = {param.max_iter * k // SAMPLES for k in range(SAMPLES)} | {last}
    if param.lr_policy in ("fixed", "multistep", "multifixed"):
        at = {"multistep": drops, "multifixed": [end + 1 for end in param.stageiter[:-1]]}
        changes = at.get(param.lr_policy, ())
    elif param.lr_policy == "step" and last // max(param.stepsize, 1) < SAMPLES:
        changes = range(0, last + 1, max(param.stepsize, 1))
    rising = {warm * k // SAMPLES for k in range(SAMPLES)}
    iterations = sorted(rising | {warm, *(change for change in changes if change > warm)})
    return [(one, learning_rate(param, one, bisect_right(drops, one))) for one in iterations if one <= last]


def _drops(step_values: Iterable[int], warm: int) -> Iterator[int]:
    """The iterations at which `multistep` lowers the rate. It passes one step value an iteration at most."""
    iteration = warm - 1
    for value in step_values:
        iteration = max(iteration + 1, value)
        yield iteration
