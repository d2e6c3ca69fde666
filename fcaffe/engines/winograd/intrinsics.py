"""What compiled code needs beyond Numba: oneDNN's product of matrices, and copies by vectors.

Numba does not cache code that holds an address on disk, so the address of dnnl_sgemm is an argument.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fcaffe.engines.winograd.compiling import compiled
from fcaffe.engines.winograd.transforms import CHANNELS

Array = Any
BYTE, LONG, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
SIGNATURE = ir.FunctionType(BYTE, [BYTE, BYTE, *[LONG] * 3, FLOAT, *[LONG] * 4, FLOAT, *[LONG] * 2])


def _call(context: Any, sgemm: Any, turn: Any, sizes: Any, a: Any, b: Any, c: Any, add: Any) -> Any:
    """dnnl_sgemm; a, b and c are pairs of an address and a leading dimension."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sgemm, turn, sizes, *matrices, add = arguments
        function = builder.inttoptr(sgemm, SIGNATURE.as_pointer())
        rows, columns, inner = (builder.extract_value(sizes, i) for i in range(3))
        (a, step_a), (b, step_b), (c, step_c) = (
            (builder.extract_value(matrix, 0), builder.extract_value(matrix, 1)) for matrix in matrices
        )
        plain = ir.Constant(BYTE, ord("N"))
        values = [turn, plain, rows, columns, inner, ir.Constant(FLOAT, 1.0), a, step_a, b, step_b, add, c, step_c]
        return builder.call(function, values)

    matrix = types.UniTuple(types.int64, 2)
    sizes = types.UniTuple(types.int64, 3)
    return types.int32(types.int64, types.int32, sizes, matrix, matrix, matrix, types.float32), generate


call: Any = intrinsic(_call)


@compiled
def product(sgemm: int, turn: bool, a: Array, b: Array, c: Array, used: int, add: bool) -> None:
    """c = a @ b, or with `turn` a.T @ b, or with `add` c plus that, with the first `used` rows of a (with `turn`, of
    both)."""
    columns = b.shape[1]
    rows, inner = (a.shape[1], used) if turn else (used, a.shape[1])
    call(
        sgemm,
        np.int32(84 if turn else 78),
        (rows, columns, inner),
        (np.int64(a.ctypes.data), a.shape[1]),
        (np.int64(b.ctypes.data), columns),
        (np.int64(c.ctypes.data), columns),
        np.float32(1 if add else 0),
    )


def _copy(context: Any, source: Any, offset: Any, target: Any, to: Any) -> Any:
    """target[to : to + CHANNELS] = source[offset : offset + CHANNELS] of C-ordered float32 arrays taken as flat.

    As a loop, each copy would first check whether both overlap, which takes seven times as long.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(FLOAT, CHANNELS).as_pointer()
        pointers = []
        for kind, array, index in zip(signature.args[::2], arguments[::2], arguments[1::2], strict=True):
            data = context.make_array(kind)(context, builder, array).data
            pointers.append(builder.bitcast(builder.gep(data, [index]), vector))
        values = builder.load(pointers[0])
        values.align = 4
        builder.store(values, pointers[1]).align = 4
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


copy: Any = intrinsic(_copy)
