"""Vectors of channels for compiled code: tile transforms, products and copies, written in LLVM's instructions.

Numba would compile loops over channels to slower code, which checks in each loop whether arrays overlap. All arrays are
float32 in C order. Offsets count their elements.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fcaffe.engines.winograd.transforms import CHANNELS, Tile, along_both_axes

INDEX, LONG, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR = ir.VectorType(FLOAT, CHANNELS)
FUSED = ("contract",)  # a product and a sum may become one instruction

# Rows of a product that are summed at once. The sums of ROWS rows fill most of the registers. Those of FEW_ROWS, for
# the last rows, fill a third, which still keeps both multiplication units busy. AVX2 has half as many registers.
ROWS, FEW_ROWS = (24, 8) if llvmlite.binding.get_host_cpu_features().get("avx512f") else (6, 6)


class Vector:
    """Values of CHANNELS channels in a register, with the arithmetic that the transforms need."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def __add__(self, other: Vector) -> Vector:
        return Vector(self.builder, self.builder.fadd(self.value, other.value, flags=FUSED))

    def __rmul__(self, factor: float) -> Vector:
        constant = ir.Constant(VECTOR, [factor] * CHANNELS)
        return Vector(self.builder, self.builder.fmul(constant, self.value, flags=FUSED))


class Memory:
    """The elements of an array that compiled code reads and writes."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any) -> None:
        self.builder = builder
        self.data = context.make_array(kind)(context, builder, array).data

    def number(self, offset: Any) -> Any:
        return self.builder.load(self.builder.gep(self.data, [offset]))

    def vector(self, offset: Any) -> Any:
        value = self.builder.load(self._pointer(offset))
        value.align = 4
        return value

    def write(self, offset: Any, vector: Any) -> None:
        self.builder.store(vector, self._pointer(offset)).align = 4

    def _pointer(self, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(self.data, [offset]), VECTOR.as_pointer())


def _operation(names: str, generate: Callable[..., None]) -> Any:
    """A function for compiled code with parameters of these names.

    `generate` gets LLVM's builder and the arguments: arrays as Memory, integers of 64 bits.
    """

    def typed(_: Any, *kinds: Any) -> Any:
        signature = types.void(*(types.int64 if isinstance(kind, types.Integer) else kind for kind in kinds))

        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            pairs = zip(signature.args, values, strict=True)
            generate(builder, *(Memory(context, builder, k, v) if isinstance(k, types.Array) else v for k, v in pairs))
            return context.get_dummy_value()

        return signature, code

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("_", *names.split())]
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(typed)


def tile_transform(matrices: Sequence[np.ndarray], with_bias: bool = False) -> Any:
    """A function that transforms a tile of vectors along both axes.

    `size` selects one of the matrices, which are (6, size) or (size, 6). Vector (i, j) of the tile is at
    first + i * row + j * column in the source. That of the result is at to + i * below + j * beside in the target. With
    `with_bias` the function adds the vector of `bias` at `channel` to each result, and then raises values below `least`
    to it.
    """

    def generate(builder: Any, size: Any, *arguments: Any) -> None:
        def select(matrix: np.ndarray, *others: np.ndarray) -> None:
            if not others:
                _transform(builder, matrix, *arguments)
                return
            with builder.if_else(builder.icmp_signed("==", size, LONG(min(matrix.shape)))) as (same, different):
                with same:
                    _transform(builder, matrix, *arguments)
                with different:
                    select(*others)

        select(*matrices)

    names = "size source first row column target to below beside"
    return _operation(names + " bias channel least" * with_bias, generate)


def _transform(builder: Any, matrix: np.ndarray, *arguments: Any) -> None:
    source, first, row, column, target, to, below, beside, *ends = arguments

    def offset(begin: Any, i: int, down: Any, j: int, right: Any) -> Any:
        return builder.add(begin, builder.add(builder.mul(down, LONG(i)), builder.mul(right, LONG(j))))

    size = range(matrix.shape[1])
    tile: Tile = [[Vector(builder, source.vector(offset(first, i, row, j, column))) for j in size] for i in size]
    if ends:
        bias, channel, least = ends
        addend = Vector(builder, bias.vector(channel))
    for i, line in enumerate(along_both_axes(matrix, tile)):
        for j, vector in enumerate(line):
            result = _bounded(builder, (vector + addend).value, least) if ends else vector.value
            target.write(offset(to, i, below, j, beside), result)


def _bounded(builder: Any, vector: Any, least: Any) -> Any:
    """The larger of each value and `least`. NaN stays."""
    bounds = _repeated(builder, least)
    return builder.select(builder.fcmp_ordered("<", vector, bounds), bounds, vector)


def _multiply(rows: int, builder: Any, *arguments: Any) -> None:
    a, first, row, step, b, begin, below, c, to, down, length, adds = arguments

    def offsets(start: Any, distance: Any) -> list[Any]:
        return [builder.add(start, builder.mul(distance, LONG(i))) for i in range(rows)]

    corners, targets = offsets(first, row), offsets(to, down)
    zeros = ir.Constant(VECTOR, [0.0] * CHANNELS)
    old = [builder.select(adds, c.vector(target), zeros) for target in targets]
    before, loop, after = builder.block, builder.append_basic_block("sum"), builder.append_basic_block("summed")
    builder.branch(loop)
    builder.position_at_end(loop)
    n, sums = builder.phi(LONG), [builder.phi(VECTOR) for _ in targets]
    line = b.vector(builder.add(begin, builder.mul(n, below)))
    along = builder.mul(n, step)
    factors = [_repeated(builder, a.number(builder.add(corner, along))) for corner in corners]
    products = [builder.fmul(factor, line, flags=FUSED) for factor in factors]
    new = [builder.fadd(total, product, flags=FUSED) for total, product in zip(sums, products, strict=True)]
    following = builder.add(n, LONG(1))
    builder.cbranch(builder.icmp_signed("<", following, length), loop, after)
    for phi, start, next_ in zip([n, *sums], [LONG(0), *old], [following, *new], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(next_, loop)
    builder.position_at_end(after)
    for target, total in zip(targets, new, strict=True):
        c.write(target, total)


def _repeated(builder: Any, number: Any) -> Any:
    """A vector of equal numbers."""
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, INDEX(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INDEX, CHANNELS), None))


def _add(builder: Any, source: Memory, first: Any, target: Memory, to: Any) -> None:
    target.write(to, builder.fadd(target.vector(to), source.vector(first)))


def _copy(builder: Any, source: Memory, first: Any, least: Any, target: Memory, to: Any) -> None:
    target.write(to, _bounded(builder, source.vector(first), least))


def _fetch(builder: Any, array: Memory, offset: Any) -> None:
    pointer = builder.bitcast(builder.gep(array.data, [offset]), ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, INDEX, INDEX, INDEX])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    builder.call(function, [pointer, INDEX(0), INDEX(3), INDEX(1)])


# ROWS or FEW_ROWS rows of a product of matrices. For row i the vector of c at to + i * down becomes the sum over
# n < length of a[first + i * row + n * step] times the vector of b at begin + n * below. With `adds`, the sum is added.
multiply, multiply_few = [
    _operation("a first row step b begin below c to down length adds", functools.partial(_multiply, rows))
    for rows in (ROWS, FEW_ROWS)
]

# Add a vector to the target's.
add = _operation("source first target to", _add)

# Copy a vector, and raise values below `least` to it. NaN stays.
copy = _operation("source first least target to", _copy)

# Begin to load a cache line. The array need not have this offset.
fetch = _operation("array offset", _fetch)
