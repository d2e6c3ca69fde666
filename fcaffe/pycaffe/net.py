"""pycaffe's Net."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe import net as core
from fcaffe.errors import CallError, NetError, NoSuchLayerError, UsageError
from fcaffe.layers.memory_data import MemoryData
from fcaffe.model_files import write_hdf5, write_model
from fcaffe.net.layer import Layer as CoreLayer
from fcaffe.net.node import Hook
from fcaffe.net.script.engine_lock import engine_lock
from fcaffe.net.script.host_arrays import host_views
from fcaffe.net.weights import load_weights, misfit, share_weights, to_model
from fcaffe.proto import read_net
from fcaffe.proto.text import Source
from fcaffe.pycaffe import session
from fcaffe.pycaffe.blob import Blob, BlobVec
from fcaffe.pycaffe.layer import Layer, UserLayer
from fcaffe.pycaffe.net_spec import NetSpec


class Net:
    """`Net(network_file, phase, level=0, stages=None, weights=None)`, or Caffe's older `Net(file, weights, phase)`.

    `network_file` is the path of a prototxt or its text, a NetParameter or a NetSpec.
    """

    def __init__(
        self,
        network_file: Source | NetSpec,
        *args: Any,
        phase: int | None = None,
        level: int = 0,
        stages: Iterable[str] | None = None,
        weights: str | None = None,
    ) -> None:
        if len(args) == 2 and isinstance(args[0], str):
            weights, phase = args
            log.legacy_net(network_file if isinstance(network_file, str) else "net", args[1], args[0])
        elif args:
            positional = dict(zip(("phase", "level", "stages", "weights"), args, strict=False))
            phase = positional.get("phase", phase)
            level = positional.get("level", level)
            stages = positional.get("stages", stages)
            weights = positional.get("weights", weights)
        if phase not in (session.TRAIN, session.TEST):
            raise CallError(f"Net needs a phase, caffe.TRAIN or caffe.TEST; given was {phase!r}")
        param = read_net(network_file.to_proto() if isinstance(network_file, NetSpec) else network_file)
        param.state.phase = phase
        param.state.level = level
        param.state.stage.extend(stages or [])
        with engine_lock():
            self._bind(core.Net(param, session.context()))
        if weights is not None:
            self.copy_from(weights)

    @classmethod
    def _of(cls, net: core.Net) -> Net:
        """The interface of an existing net, such as a solver's."""
        made = cls.__new__(cls)
        made._bind(net)
        return made

    def _bind(self, net: core.Net) -> None:
        self._net = net
        nodes = net.nodes
        self.name = net.name
        self._layer_names: list[str] = net.layer_names
        self._blob_names: list[str] = net.blob_names
        self._views = host_views(net.context.engine)
        self._views.prepare(net.blobs[index] for index in net.input_ids)
        self._blobs = [Blob(blob, self._views) for blob in net.blobs]
        self._blob_loss_weights: list[float] = net.blob_loss_weights
        self._inputs: list[int] = net.input_ids
        self._outputs: list[int] = net.output_ids
        self._top_ids: Callable[[int], list[int]] = [node.top_ids for node in nodes].__getitem__
        self._bottom_ids: Callable[[int], list[int]] = [node.bottom_ids for node in nodes].__getitem__
        self.layers: list[Layer] = [_face(node.layer) for node in nodes]
        self.layer_dict = OrderedDict(zip(self._layer_names, self.layers, strict=True))
        self.blobs: OrderedDict[str, Blob] = OrderedDict(zip(self._blob_names, self._blobs, strict=True))
        self.blob_loss_weights = OrderedDict(zip(self._blob_names, self._blob_loss_weights, strict=True))
        self.params: OrderedDict[str, BlobVec] = OrderedDict(
            (name, layer.blobs) for name, layer in zip(self._layer_names, self.layers, strict=True) if layer.blobs
        )
        self.inputs = [self._blob_names[i] for i in self._inputs]
        self.outputs = [self._blob_names[i] for i in self._outputs]
        self.top_names = OrderedDict((n.name, [self._blob_names[i] for i in n.top_ids]) for n in nodes)
        self.bottom_names = OrderedDict((n.name, [self._blob_names[i] for i in n.bottom_ids]) for n in nodes)

    def forward(
        self, blobs: list[str] | None = None, start: str | None = None, end: str | None = None, **inputs: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Run the layers from `start` to `end` (both included), inputs by keyword; returns the outputs' data by name.

        `blobs` names further blobs to return.
        """
        with engine_lock():
            self._put_all("forward", "inputs", self.inputs, inputs, lambda blob: blob.data)
            last = len(self.layers) - 1 if end is None else self._index(end)
            self._forward(0 if start is None else self._index(start), last)
            names = [*(blobs or []), *(self.outputs if end is None else self.top_names[end])]
            return {name: self.blobs[name].data for name in names}

    def backward(
        self, diffs: list[str] | None = None, start: str | None = None, end: str | None = None, **tops: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Run the layers backward from `start` to `end` (both included); returns the inputs' gradients by name.

        Gradients of the outputs are given by keyword; `diffs` names further blobs whose gradients to return.
        """
        with engine_lock():
            self._put_all("backward", "outputs", self.outputs, tops, lambda blob: blob.diff)
            last = 0 if end is None else self._index(end)
            self._backward(len(self.layers) - 1 if start is None else self._index(start), last)
            names = [*(diffs or []), *(self.inputs if end is None else self.bottom_names[end])]
            return {name: self.blobs[name].diff for name in names}

    def forward_all(self, blobs: list[str] | None = None, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Run any number of samples, in batches of the net's size; returns what `forward` does, for all samples.

        Zeros fill up the last batch; their results are not returned.
        """
        outs = [_copies(self.forward(blobs, None, None, **batch)) for batch in self._batch(inputs)]
        return self._all_samples(outs, inputs)

    def forward_backward_all(
        self, blobs: list[str] | None = None, diffs: list[str] | None = None, **values: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The same, with a backward pass after each forward pass; returns what both do, for all samples.

        Keywords are inputs, and gradients of outputs. Without any of the inputs, or of the outputs, each pass begins
        with what is in the blobs.
        """
        inputs = {name: values[name] for name in self.inputs if name in values}
        tops = {name: values[name] for name in self.outputs if name in values}
        outs, gradients = [], []
        for batch, top_batch in zip_longest(self._batch(inputs), self._batch(tops)):
            outs.append(_copies(self.forward(blobs, None, None, **batch or {})))
            gradients.append(_copies(self.backward(diffs, None, None, **top_batch or {})))
        return self._all_samples(outs, values), self._all_samples(gradients, values)

    def _batch(self, blobs: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Yields the arrays in batches of the net's size. Zeros fill up the last one."""
        size, number = self._batch_size, _samples(blobs)
        for start in range(0, number, size):
            missing = max(0, start + size - number)
            parts = {name: np.asarray(values[start : start + size]) for name, values in blobs.items()}
            yield {name: np.pad(part, [(0, missing), *[(0, 0)] * (part.ndim - 1)]) for name, part in parts.items()}

    @property
    def _batch_size(self) -> int:
        return self._blobs[0].shape[0]

    def _all_samples(self, batches: list[dict[str, np.ndarray]], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The concatenated results of batches, without those of the zeros that fill up the last one."""
        filled_up = len(batches) * self._batch_size - _samples(given)
        results = {}
        for name in batches[0] if batches else ():
            result = np.concatenate([np.atleast_1d(batch[name]) for batch in batches])
            each = len(result) // (len(batches) * self._batch_size)  # rows for a sample; none of a loss
            results[name] = result[: len(result) - each * filled_up]
        return results

    def _forward(self, start: int, end: int) -> float:
        """Layers `start` to `end` by index, both included; returns the loss."""
        whole = start == 0 and end == len(self.layers) - 1
        with engine_lock():
            if whole and self._net.on_demand is not None:
                self._net.on_demand.forget()  # before inputs are written over the last pass's, which would be kept
            with self._views.engine_at_work():
                return self._net.forward(start, None if whole else end)

    def _backward(self, start: int, end: int) -> None:
        with self._views.engine_at_work():
            self._net.backward(start, end)

    def before_forward(self, run: Hook) -> None:
        """Call this with the index of each layer ahead of its forward pass, in nets of solvers as well."""
        self._call(run, self._net.hooks["before_forward"])

    def after_forward(self, run: Hook) -> None:
        self._call(run, self._net.hooks["after_forward"])

    def before_backward(self, run: Hook) -> None:
        self._call(run, self._net.hooks["before_backward"])

    def after_backward(self, run: Hook) -> None:
        """Call this with the index of each layer behind its backward pass; it may be an NCCL too."""
        self._call(run, self._net.hooks["after_backward"])

    def _call(self, run: Hook, hooks: list[Hook]) -> None:
        if not callable(run):
            raise CallError(f"a hook of a net is called with the index of a layer, which {run!r} cannot be")

        def call(layer: int) -> None:
            with self._views.user_at_work():
                run(layer)

        hooks.append(call)

    def reshape(self) -> None:
        """Carry new shapes of the inputs through the net."""
        with self._views.engine_at_work():
            self._net.reshape()

    def clear_param_diffs(self) -> None:
        with self._views.engine_at_work():
            self._net.parameters.clear_diffs()

    def copy_from(self, path: str) -> None:
        """Copy the weights of the layers of the same names from a .caffemodel."""
        with self._views.engine_at_work():
            loaded = {layer.name for layer in load_weights(self._net, path).layers}
        if problem := misfit(self._net, loaded, path):
            log.warning(problem)

    def load_hdf5(self, path: str) -> None:
        """The same from a model in HDF5, whatever its name."""
        self.copy_from(path)

    def share_with(self, other: Net) -> None:
        """Use the other net's parameters from now on."""
        with self._views.engine_at_work():
            share_weights(self._net, other._net)

    def save(self, path: str) -> None:
        with self._views.engine_at_work():
            write_model(path, to_model(self._net))

    def save_hdf5(self, path: str) -> None:
        """Write the model as HDF5, whatever its name."""
        with self._views.engine_at_work():
            write_hdf5(path, to_model(self._net))

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray, layer: str | None = None) -> None:
        """Give a MemoryData layer its images (N, C, H, W) and labels (N,); N a multiple of the batch size.

        `layer` is its name; without one it is the net's first layer, as in Caffe.
        """
        name = self._net.layers[0].name if layer is None else layer
        found = {one.name: one for one in self._net.layers if isinstance(one, MemoryData)}
        if name not in found:
            given = ", ".join(found) or "none"
            raise NetError(f'set_input_arrays: "{name}" is not a MemoryData layer; the net has {given}')
        found[name].reset(data, labels)

    _set_input_arrays = set_input_arrays

    def _index(self, layer: str) -> int:
        if layer not in self._layer_names:
            raise NoSuchLayerError(f'the net has no layer "{layer}"; its layers are {", ".join(self._layer_names)}')
        return self._layer_names.index(layer)

    def _put_all(
        self, method: str, what: str, names: list[str], given: dict[str, np.ndarray], side: Callable[[Blob], np.ndarray]
    ) -> None:
        """Write the arrays that a script gave by keyword into data or diff of the net's inputs or outputs."""
        if given and set(given) != set(names):
            raise UsageError(f"{method}: the net's {what} are {names}, given were {sorted(given)}")
        for name, values in given.items():
            target = side(self.blobs[name])
            if np.shape(values)[:1] != target.shape[:1]:
                raise UsageError(
                    f'blob "{name}" has the shape {target.shape}, what is given has {np.shape(values)}: not batch '
                    "sized; reshape the blob first"
                )
            target[...] = values


def _face(layer: CoreLayer) -> Layer:
    """A layer as user code sees it: a user's own one is the instance of its class."""
    return layer.user_layer if isinstance(layer, UserLayer) else Layer._of(layer)


def _samples(arrays: dict[str, np.ndarray]) -> int:
    """The number of samples of each array, which must be the same for all. Raises UsageError."""
    numbers = {name: len(values) for name, values in arrays.items()}
    if len(set(numbers.values())) > 1:
        raise UsageError(f"every array needs as many samples as the others; given were {numbers}")
    return next(iter(numbers.values()), 0)


def _copies(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.copy() for name, values in arrays.items()}
