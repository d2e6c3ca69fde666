"""Convolution and its gradients by cuDNN's graphs, fused with bias and ReLU where that is faster."""

from __future__ import annotations

from typing import Any

from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.cuda.gradients import Gradients
from fcaffe.engines.cuda.operands import channels_last_strides, is_aligned, is_channels_last
from fcaffe.engines.cuda.plans import Build, Plan, Plans
from fcaffe.engines.windows import Windows

X, WEIGHTS, BIAS, Y = 1, 2, 3, 4  # numbers of the tensors in a graph
FUSED, ALONE = "fused", "alone"

Array = Any
Shape = tuple[int, ...]


class Convolution(Gradients, PlainConvolution):
    """x (N, C, spatial...), weights (M, C / group, kernel...), bias (M,) or None, y (N, M, output_size...).

    One to three spatial axes; cuDNN tells the groups by the channels of the weights. What it gets is channels-last,
    aligned and of one type, the engine's 16-bit one if it has one; anything else is copied first.
    """

    plans: Plans

    def convolution_forward(
        self, x: Array, weights: Array, bias: Array, y: Array, windows: Windows, group: int, relu: bool = False
    ) -> None:
        x, weights, windows, target = self._operands(x, weights, windows, y)
        shapes = x.shape, weights.shape, target.shape
        fused_bias = None if bias is None else self.factor(bias)

        def alone(graph: Any) -> None:
            self._output(graph, self._convolve(graph, x.dtype, shapes, windows), Y, x.dtype, target.shape)

        def fused(graph: Any) -> None:
            result = self._convolve(graph, x.dtype, shapes, windows)
            if fused_bias is not None:
                channels = (1, target.shape[1], *(1,) * (target.ndim - 2))
                result = graph.bias(input=result, bias=self._tensor(graph, BIAS, x.dtype, channels))
            if relu:
                result = graph.relu(input=result)
            self._output(graph, result, Y, x.dtype, target.shape)

        def run(plan: Plan) -> None:
            pointers = {X: x.data.ptr, WEIGHTS: weights.data.ptr, Y: target.data.ptr}
            if plan.variant == FUSED and fused_bias is not None:
                pointers[BIAS] = fused_bias.data.ptr
            self.plans.execute(plan, pointers)
            if plan.variant == ALONE and bias is not None:
                self.add_bias(target, bias, relu)
            elif plan.variant == ALONE and relu:
                self.relu_forward(target, target, 0)

        variants: dict[str, Build] = {ALONE: alone}
        if bias is not None or relu:
            variants[FUSED] = fused
        signature = ("forward", x.dtype.name, *shapes, windows, bias is not None, relu)
        plan = self.plans.find(signature, variants, run) if x.size else None
        if plan is None:
            super().convolution_forward(x, weights, bias, target, windows, group, relu)
        else:
            run(plan)
        self._deliver(target, y)

    def convolution_backward_data(self, dy: Array, weights: Array, dx: Array, windows: Windows, group: int) -> None:
        dy, weights, windows, target = self._operands(dy, weights, windows, dx)

        def build(graph: Any) -> None:
            result = graph.conv_dgrad(
                loss=self._tensor(graph, Y, dy.dtype, dy.shape),
                filter=self._tensor(graph, WEIGHTS, dy.dtype, weights.shape),
                **_geometry(windows),
            )
            self._output(graph, result, X, dy.dtype, target.shape)

        def run(plan: Plan) -> None:
            self.plans.execute(plan, {Y: dy.data.ptr, WEIGHTS: weights.data.ptr, X: target.data.ptr})

        signature = ("data", dy.dtype.name, target.shape, weights.shape, dy.shape, windows)
        plan = self.plans.find(signature, {ALONE: build}, run) if target.size and dy.size else None
        if plan is None:
            super().convolution_backward_data(dy, weights, target, windows, group)
        else:
            run(plan)
        self._deliver(target, dx)

    def convolution_backward_weights(
        self, x: Array, dy: Array, dweights: Array, dbias: Array | None, windows: Windows, group: int, add: bool
    ) -> None:
        if dbias is not None:
            self.convolution_backward_bias(dy, dbias, add)
        if not x.size or not 1 <= len(windows.kernel) <= 3:
            super().convolution_backward_weights(x, dy, dweights, None, windows, group, add)
            return
        x, dy = self._images(x), self._images(dy)
        gradients, windows = _with_two_axes(dweights), _on_two_axes(windows)
        if add:
            self.settle_gradients()  # these may be among them
        narrow = None if add else self.narrow_gradient(gradients)
        in_place = not add and gradients.dtype == x.dtype and is_channels_last(gradients) and is_aligned(gradients)
        if in_place:
            target = gradients
        else:
            target = self.empty_channels_last(gradients.shape, x.dtype) if narrow is None else narrow

        def build(graph: Any) -> None:
            result = graph.conv_wgrad(
                image=self._tensor(graph, X, x.dtype, x.shape),
                loss=self._tensor(graph, Y, x.dtype, dy.shape),
                **_geometry(windows),
            )
            self._output(graph, result, WEIGHTS, x.dtype, target.shape)

        def run(plan: Plan) -> None:
            self.plans.execute(plan, {X: x.data.ptr, Y: dy.data.ptr, WEIGHTS: target.data.ptr})

        signature = ("weights", x.dtype.name, x.shape, target.shape, dy.shape, windows)
        plan = self.plans.find(signature, {ALONE: build}, run)
        if plan is None:
            super().convolution_backward_weights(x, dy, gradients, None, windows, group, add)
            return
        run(plan)
        if add:
            gradients += target
        elif narrow is not None:
            self.put_off(gradients)
        elif not in_place:
            self.copy(target, gradients)

    def convolution_backward_bias(self, dy: Array, dbias: Array, add: bool) -> None:
        self.bias_backward(dy, dbias, add)

    def _operands(
        self, images: Array, weights: Array, windows: Windows, output: Array
    ) -> tuple[Array, Array, Windows, Array]:
        """The images, the weights and the windows as cuDNN takes them, and memory for the output: its own if it can be
        written as it is."""
        if not 1 <= len(windows.kernel) <= 3:
            return images, weights, windows, output
        images, weights = self._images(images), self._images(weights)
        target = _with_two_axes(output)
        if target.dtype != images.dtype or not (is_channels_last(target) and is_aligned(target)):
            target = self.empty_channels_last(target.shape, images.dtype)
        return images, weights, _on_two_axes(windows), target

    def _images(self, array: Array) -> Array:
        images = self.channels_last(self.factor(_with_two_axes(array)))
        if is_aligned(images):
            return images
        copied = self.empty_channels_last(images.shape, images.dtype)
        self.copy(images, copied)
        return copied

    def _deliver(self, target: Array, output: Array) -> None:
        """Copy what was written into the target, unless that is the output's own memory."""
        if target.data.ptr != output.data.ptr:
            self.copy(target.reshape(output.shape), output)

    def _convolve(self, graph: Any, dtype: Any, shapes: tuple[Shape, Shape, Shape], windows: Windows) -> Any:
        x, weights, _ = shapes
        return graph.conv_fprop(
            image=self._tensor(graph, X, dtype, x),
            weight=self._tensor(graph, WEIGHTS, dtype, weights),
            **_geometry(windows),
        )

    def _tensor(self, graph: Any, number: int, dtype: Any, shape: Shape) -> Any:
        return graph.tensor(
            dim=list(shape), stride=list(channels_last_strides(shape)), data_type=self._type(dtype), uid=number
        )

    def _output(self, graph: Any, tensor: Any, number: int, dtype: Any, shape: Shape) -> None:
        tensor.set_uid(number)
        tensor.set_output(True).set_data_type(self._type(dtype))
        tensor.set_dim(list(shape)).set_stride(list(channels_last_strides(shape)))

    def _type(self, dtype: Any) -> Any:
        types = self.plans.cudnn.data_type
        return {"float32": types.FLOAT, "float16": types.HALF, "bfloat16": types.BFLOAT16}[dtype.name]


def _geometry(windows: Windows) -> dict[str, list[int]]:
    return {"padding": list(windows.pad), "stride": list(windows.stride), "dilation": list(windows.dilation)}


def _with_two_axes(array: Array) -> Array:
    """(N, C, 1, L) of (N, C, L): cuDNN wants two spatial axes at least."""
    return array[:, :, None] if array.ndim == 3 else array


def _on_two_axes(windows: Windows) -> Windows:
    if len(windows.kernel) != 1:
        return windows
    return Windows((1, *windows.kernel), (1, *windows.stride), (0, *windows.pad), (1, *windows.dilation))
