"""The primitives of batch normalisation: of a piece of an array, or of a whole one."""

from __future__ import annotations

from ctypes import c_float, c_int, c_uint
from typing import Any

from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.library import type_of
from fcaffe.engines.onednn.operation import Operation, Operations
from fcaffe.engines.onednn.pieces import Piece, is_channels_last, kind_of, of_channels, piece_layout
from fcaffe.engines.onednn.primitives import Description, Layout

GLOBAL_STATISTICS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8  # dnnl_normalization_flags_t

Array = Any


class BatchNormOperations(Operations):
    """Each is made once; `affine` is whether there are a scale and a shift."""

    def _normalize_piece(self, x: Array, piece: Piece, affine: bool, eps: float) -> Operation:
        """With a ReLU, for a backward pass."""

        def build() -> Operation:
            layout, channels = piece_layout(self.library, x, piece), piece.groups * x.shape[1]
            flags = _flags(affine, True) | GLOBAL_STATISTICS
            description = self._describe_batch_norm(layout, eps, flags, dnnl.FORWARD_TRAINING)
            inputs = self._inputs(layout, channels, affine)
            return Operation(self.library, description, inputs, {dnnl.DST: layout}, [dnnl.WORKSPACE])

        return self.operation(("batch norm", *kind_of(x, piece), affine, eps), build)

    def _backward_of_piece(self, x: Array, piece: Piece, eps: float, relu: bool) -> Operation:
        """By mean and variance as constants, with a scale."""

        def build() -> Operation:
            library, layout, channels = self.library, piece_layout(self.library, x, piece), piece.groups * x.shape[1]
            flags = USE_SCALE | USE_SHIFT | GLOBAL_STATISTICS | (FUSE_RELU if relu else 0)
            description = library.describe(
                "batch_normalization_backward",
                library.engine,
                c_int(dnnl.BACKWARD),
                layout,
                layout,
                layout,
                c_float(eps),
                c_uint(flags),
                self._describe_batch_norm(layout, eps, flags, dnnl.FORWARD_TRAINING),
                library.attributes(),
            )
            inputs = {dnnl.SRC: layout, dnnl.DIFF_DST: layout}
            inputs |= self._of_channels(channels, dnnl.MEAN, dnnl.VARIANCE, dnnl.SCALE)
            outputs = {dnnl.DIFF_SRC: layout, **self._of_channels(channels, dnnl.DIFF_SCALE, dnnl.DIFF_SHIFT)}
            return Operation(library, description, inputs, outputs, [dnnl.WORKSPACE] * relu)

        return self.operation(("batch norm backward", *kind_of(x, piece), eps, relu), build)

    def _steps(self, x: Array, kinds: tuple[int, ...], together: int, relu: bool) -> Operation:
        """Binary operations of channels, one after the other, from x to an array that is laid out alike; `together`
        rows of channels count as one."""
        library, channels = self.library, together * x.shape[1]

        def build() -> Operation:
            images = 1 if is_channels_last(x) else x.shape[0]
            rest = x.size // (images * channels)
            inner = (1, channels) if is_channels_last(x) else (rest, 1)
            strides = channels * rest, *inner, inner[1]
            layout, each = (
                Layout(library, (images, channels, rest, 1), type_of(x), strides),
                of_channels(library, channels, 4),
            )
            attributes = library.chain([(kind, each) for kind in kinds[1:]], relu)
            description = library.describe("binary", library.engine, c_int(kinds[0]), layout, each, layout, attributes)
            inputs, chained = {dnnl.SRC: layout, dnnl.SRC_1: each}, dict(enumerate([each] * (len(kinds) - 1)))
            return Operation(library, description, inputs, {dnnl.DST: layout}, chained=chained)

        return self.operation(("steps", x.shape, x.strides, kinds, together, relu), build, (x, x))

    def _add_affine(self, x: Array, y: Array, mean: Array, slope: Array, offset: Array) -> None:
        """y += (x - mean) * slope + offset, per channel; x and y are laid out alike."""
        library, channels = self.library, x.shape[1]

        def build() -> Operation:
            layout, each = library.layout(x), of_channels(library, channels, x.ndim)
            attributes = library.chain([(dnnl.MULTIPLY, each), None, (dnnl.ADD, each)])
            description = library.describe(
                "binary", library.engine, c_int(dnnl.SUBTRACT), layout, each, layout, attributes
            )
            inputs = {dnnl.SRC: layout, dnnl.SRC_1: each}
            return Operation(library, description, inputs, {dnnl.DST: layout}, chained={0: each, 2: each})

        ins = (address(x), address(mean))
        operation = self.operation(("affine added", x.shape, x.strides), build)
        operation(ins, (address(y), address(slope), address(offset)))

    def _normalized_sum(self, x: Array, steps: tuple[Array, Array, Array], other: Array, y: Array) -> None:
        """y = the larger of 0 and (x - steps[0]) * steps[1] + steps[2] + other, the steps per channel, in one pass; x,
        other and y are laid out alike."""
        library, channels = self.library, x.shape[1]

        def build() -> Operation:
            layout, each = library.layout(x), of_channels(library, channels, x.ndim)
            chain = [(dnnl.MULTIPLY, each), (dnnl.ADD, each), (dnnl.ADD, layout)]
            description = library.describe(
                "binary", library.engine, c_int(dnnl.SUBTRACT), layout, each, layout, library.chain(chain, relu=True)
            )
            inputs, chained = {dnnl.SRC: layout, dnnl.SRC_1: each}, {0: each, 1: each, 2: layout}
            return Operation(library, description, inputs, {dnnl.DST: layout}, chained=chained)

        mean, factor, shift = map(address, steps)
        operation = self.operation(("normalized sum", x.shape, x.strides), build)
        operation((address(x), mean), (address(y), factor, shift, address(other)))

    def _describe_batch_norm(self, layout: Layout, eps: float, flags: int, kind: int) -> Description:
        library = self.library
        arguments = c_int(kind), layout, layout, c_float(eps), c_uint(flags), library.attributes()
        return library.describe("batch_normalization_forward", library.engine, *arguments)

    def _inputs(self, layout: Layout, channels: int, affine: bool) -> dict[int, Layout]:
        affine_inputs = (dnnl.SCALE, dnnl.SHIFT) if affine else ()
        return {dnnl.SRC: layout, **self._of_channels(channels, dnnl.MEAN, dnnl.VARIANCE, *affine_inputs)}

    def _of_channels(self, channels: int, *arguments: int) -> dict[int, Layout]:
        return {argument: Layout(self.library, (channels,), dnnl.F32, (1,)) for argument in arguments}


def _flags(affine: bool, relu: bool) -> int:
    return (USE_SCALE | USE_SHIFT if affine else 0) | (FUSE_RELU if relu else 0)
