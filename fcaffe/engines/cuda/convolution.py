"""Convolution and its gradients by cuDNN's graphs; bias and ReLU by our own kernels."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.cuda.operands import FLOAT, Operands
from fcaffe.engines.cuda.plans import Plans
from fcaffe.engines.memory import Array
from fcaffe.engines.windows import Windows

X, WEIGHTS, Y = 1, 2, 3  # numbers of the tensors in a graph
OPERATIONS = {  # method of the graph, names of its operands
    "forward": ("conv_fprop", "image", "weight"),
    "data": ("conv_dgrad", "loss", "filter"),
    "weights": ("conv_wgrad", "image", "loss"),
}

Shape = tuple[int, ...]


class Convolution(Operands, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, output_size...).

    One to three spatial axes. cuDNN derives the number of groups from the channels of the weights. It takes arrays that
    are channels-last, aligned and of one type: the engine's 16-bit type, if it has one. Others are copied first.
    """

    plans: Plans

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        if not x.size or not _is_supported(windows):
            super().convolution_forward(x, weights, bias, y, windows, group, relu)
            return
        x_, weights_, of, out = self._factor(x), self._factor(weights), _on_two_axes(windows), _with_two_axes(y)
        target = self.result(out, x_.dtype)
        if not self._compute("forward", {X: x_, WEIGHTS: weights_}, Y, target, of):
            super().convolution_forward(x_, weights_, bias, target, of, group, relu)
        elif bias is not None:
            self.add_bias(target, bias, relu)
        elif relu:
            self.relu_forward(target, target, 0)
        self.deliver(target, out)

    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        if not dx.size or not dy.size or not _is_supported(windows):
            super().convolution_backward_data(dy, weights, dx, windows, group)
            return
        dy_, weights_, of, out = self._factor(dy), self._factor(weights), _on_two_axes(windows), _with_two_axes(dx)
        target = self.result(out, dy_.dtype)
        if not self._compute("data", {Y: dy_, WEIGHTS: weights_}, X, target, of):
            super().convolution_backward_data(dy_, weights_, target, of, group)
        self.deliver(target, out)

    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, windows: Windows, group: int, add: bool
    ) -> None:
        if not x.size or not _is_supported(windows):
            super().convolution_backward_weights(x, dy, dweights, windows, group, add)
            return
        x_, dy_, of, out = self._factor(x), self._factor(dy), _on_two_axes(windows), _with_two_axes(dweights)
        target = self.empty_channels_last(out.shape, x_.dtype) if add else self.result(out, x_.dtype)
        if not self._compute("weights", {X: x_, Y: dy_}, WEIGHTS, target, of):
            super().convolution_backward_weights(x_, dy_, out, of, group, add)
        elif add:
            out += target
        else:
            self.deliver(target, out)

    def _compute(
        self, operation: str, operands: dict[int, Array], result: int, target: Array, windows: Windows
    ) -> bool:
        """Compute one operation by cuDNN; arrays by the numbers of their tensors. False if it has no plan."""
        method, *names = OPERATIONS[operation]
        arrays = {**operands, result: target}

        def build(graph: Any) -> None:
            tensors = [self._tensor(graph, number, array) for number, array in operands.items()]
            output = getattr(graph, method)(**dict(zip(names, tensors, strict=True)), **_geometry(windows))
            output.set_uid(result).set_output(True).set_data_type(self._type(target.dtype))
            output.set_dim(list(target.shape)).set_stride(_channels_last_strides(target.shape))

        shapes = [arrays[number].shape for number in (X, WEIGHTS, Y)]
        plan = self.plans.find((operation, target.dtype.name, *shapes, windows), build)
        if plan is not None:
            self.plans.execute(plan, {number: array.data.ptr for number, array in arrays.items()})
        return plan is not None

    def _factor(self, array: Array) -> Array:
        """The array, or a copy that cuDNN can take."""
        return self.operand(_with_two_axes(array), FLOAT if self.half_dtype is None else self.half_dtype)

    def _tensor(self, graph: Any, number: int, array: Array) -> Any:
        strides, kind = _channels_last_strides(array.shape), self._type(array.dtype)
        return graph.tensor(dim=list(array.shape), stride=strides, data_type=kind, uid=number)

    def _type(self, dtype: Any) -> Any:
        types = self.plans.cudnn.data_type
        return {"float32": types.FLOAT, "float16": types.HALF, "bfloat16": types.BFLOAT16}[dtype.name]


def _is_supported(windows: Windows) -> bool:
    return 1 <= len(windows.kernel) <= 3


def _channels_last_strides(shape: Shape) -> list[int]:
    """Of (N, C, spatial...), in elements."""
    strides, step = [0] * len(shape), 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= shape[axis]
    return strides


def _geometry(windows: Windows) -> dict[str, list[int]]:
    return {"padding": list(windows.pad), "stride": list(windows.stride), "dilation": list(windows.dilation)}


def _with_two_axes(array: Array) -> Array:
    """(N, C, 1, L) of (N, C, L): cuDNN wants two spatial axes at least."""
    return array[:, :, None] if array.ndim == 3 else array


def _on_two_axes(windows: Windows) -> Windows:
    if len(windows.kernel) != 1:
        return windows
    return Windows((1, *windows.kernel), (1, *windows.stride), (0, *windows.pad), (1, *windows.dilation))
