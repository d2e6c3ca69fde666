"""What a solver's prototxt comes to: all its fields, and its learning rate over the iterations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from fcaffe.solvers.learning_rate import learning_rate, warm_up_end

SAMPLES = 16
UPGRADED = ("solver_type",)  # older fields, which reading a solver turns into newer ones

FIRST_OWN_NUMBER = 100000  # of the fields that BVLC Caffe's schema does not have
NUMBERS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def solver_fields(param: Any) -> dict[str, Any]:
    """Field name to value, in the order of the schema.

    Fields that are not given are there with their default, if they are numbers, booleans or enums, or have one in the
    schema. Enums are by name, messages are dictionaries.
    """
    fields = {}
    for field in param.DESCRIPTOR.fields:
        if field.name in UPGRADED:
            continue
        value = getattr(param, field.name)
        if hasattr(value, "extend"):  # a repeated field
            if value:
                fields[field.name] = [_plain(field, item) for item in value]
        elif param.HasField(field.name) or _has_default(field):
            fields[field.name] = _plain(field, value)
    return fields


def rates(param: Any) -> list[tuple[int, float]]:
    """(iteration, rate) at each change of the rate, or at SAMPLES even distances if it changes more often than that."""
    last, warm = param.max_iter - 1, warm_up_end(param)
    drops = list(_drops(param.stepvalue, warm))
    changes: Iterable[int] = {param.max_iter * k // SAMPLES for k in range(SAMPLES)} | {last}
    if param.lr_policy in ("fixed", "multistep"):
        changes = drops if param.lr_policy == "multistep" else ()
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


def _has_default(field: Any) -> bool:
    """A field that BVLC Caffe lacks is shown only where it is given."""
    return field.number < FIRST_OWN_NUMBER and (
        field.has_default_value
        or field.cpp_type
        not in (
            FieldDescriptor.CPPTYPE_STRING,
            FieldDescriptor.CPPTYPE_MESSAGE,
        )
    )


def _plain(field: Any, value: Any) -> Any:
    """As JSON has it; a float32 with as few digits as tell it from others."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return json_format.MessageToDict(value, preserving_proto_field_name=True)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    if field.cpp_type in NUMBERS:
        return float(str(np.float32(value)))
    return value
