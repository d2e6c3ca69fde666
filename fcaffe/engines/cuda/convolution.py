"""Convolution and its gradients by cuDNN's graphs; bias and ReLU by our own kernels."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.cuda.operands import FLOAT, Operands
from fcaffe.engines.cuda.plans import Plans
from fcaffe.engines.memory import Array
from fcaffe.engines.windows import Windows

X, WEIGHTS, Y = 1, 2, 3  # numbers of the tensors in a graph

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

        def build(graph: Any) -> None:
            result = graph.conv_fprop(
                image=self._tensor(graph, X, x_.dtype, x_.shape),
                weight=self._tensor(graph, WEIGHTS, x_.dtype, weights_.shape),
                **_geometry(of),
            )
            self._output(graph, result, Y, target)

        plan = self.plans.find(("forward", x_.dtype.name, x_.shape, weights_.shape, target.shape, of), build)
        if plan is None:
            super().convolution_forward(x_, weights_, bias, target, of, group, relu)
        else:
            self.plans.execute(plan, {X: x_.data.ptr, WEIGHTS: weights_.data.ptr, Y: target.data.ptr})
            if bias is not None:
                self.add_bias(target, bias)
            if relu:
                self.relu_forward(target, target, 0)
        self.deliver(target, out)

    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        if not dx.size or not dy.size or not _is_supported(windows):
            super().convolution_backward_data(dy, weights, dx, windows, group)
            return
        dy_, weights_, of, out = self._factor(dy), self._factor(weights), _on_two_axes(windows), _with_two_axes(dx)
        target = self.result(out, dy_.dtype)

        def build(graph: Any) -> None:
            result = graph.conv_dgrad(
                loss=self._tensor(graph, Y, dy_.dtype, dy_.shape),
                filter=self._tensor(graph, WEIGHTS, dy_.dtype, weights_.shape),
                **_geometry(of),
            )
            self._output(graph, result, X, target)

        plan = self.plans.find(("data", dy_.dtype.name, target.shape, weights_.shape, dy_.shape, of), build)
        if plan is None:
            super().convolution_backward_data(dy_, weights_, target, of, group)
        else:
            self.plans.execute(plan, {Y: dy_.data.ptr, WEIGHTS: weights_.data.ptr, X: target.data.ptr})
        self.deliver(target, out)

    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, windows: Windows, group: int, add: bool
    ) -> None:
        if not x.size or not _is_supported(windows):
            super().convolution_backward_weights(x, dy, dweights, windows, group, add)
            return
        x_, dy_, of, out = self._factor(x), self._factor(dy), _on_two_axes(windows), _with_two_axes(dweights)
        target = self.empty_channels_last(out.shape, x_.dtype) if add else self.result(out, x_.dtype)

        def build(graph: Any) -> None:
            result = graph.conv_wgrad(
                image=self._tensor(graph, X, x_.dtype, x_.shape),
                loss=self._tensor(graph, Y, x_.dtype, dy_.shape),
                **_geometry(of),
            )
            self._output(graph, result, WEIGHTS, target)

        plan = self.plans.find(("weights", x_.dtype.name, x_.shape, target.shape, dy_.shape, of), build)
        if plan is None:
            super().convolution_backward_weights(x_, dy_, out, of, group, add)
            return
        self.plans.execute(plan, {X: x_.data.ptr, Y: dy_.data.ptr, WEIGHTS: target.data.ptr})
        if add:
            out += target
        else:
            self.deliver(target, out)

    def _factor(self, array: Array) -> Array:
        """The array, or a copy that cuDNN can take."""
        return self.operand(_with_two_axes(array), FLOAT if self.half_dtype is None else self.half_dtype)

    def _tensor(self, graph: Any, number: int, dtype: Any, shape: Shape) -> Any:
        return graph.tensor(
            dim=list(shape), stride=_channels_last_strides(shape), data_type=self._type(dtype), uid=number
        )

    def _output(self, graph: Any, tensor: Any, number: int, target: Array) -> None:
        tensor.set_uid(number)
        tensor.set_output(True).set_data_type(self._type(target.dtype))
        tensor.set_dim(list(target.shape)).set_stride(_channels_last_strides(target.shape))

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
