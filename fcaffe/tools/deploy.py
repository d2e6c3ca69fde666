"""Deploy nets: the part of a train_val net that computes predictions, with Inputs in place of layers that read data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fcaffe import log
from fcaffe.errors import NetError
from fcaffe.net.build.filter import filter_net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.shapes import READERS, hollow_net

PROBABILITY = "prob"  # name of the Softmax or Sigmoid at the end
ENDS = {  # losses that compute probabilities, and the layer that computes them alone
    "SoftmaxWithLoss": "Softmax",
    "SoftmaxWithLossOHEM": "Softmax",
    "SoftmaxFocalLoss": "Softmax",
    "InfogainLoss": "Softmax",
    "SigmoidCrossEntropyLoss": "Sigmoid",
    "SigmoidFocalLoss": "Sigmoid",
}
OTHER_SCORES = ("CTCDecoder", "CTCGreedyDecoder", "DetectionEvaluate", "EvalDetection")
_TRAINING = ("include", "exclude", "phase", "loss_weight", "propagate_down")
_FILLERS = ("weight_filler", "bias_filler", "filler")


def test_layers(param: Any) -> Any:
    """A copy of a NetParameter with the layers of phase TEST only."""
    net = pb.NetParameter()
    net.CopyFrom(param)
    net.state.phase = pb.TEST
    with log.quiet():
        return filter_net(net)


def is_source(layer: Any) -> bool:
    """Whether a layer brings data into its net."""
    return not layer.bottom and layer.type in (*READERS, "MemoryData", "Input", "Python")


def deploy_net(param: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """The deploy net of a NetParameter, for batches of one.

    Layers that read data become Inputs, with the transform_param that says what the net expects there; Caffe ignores
    it. Labels go, with all that only they lead to, and so do losses and scores. A loss that computes probabilities
    becomes their layer; of several with the same labels the one of the largest loss_weight counts, and the last of
    equals, since the others are auxiliary.

    `shapes` are those of the blobs that layers which read data write, with the batch in front. Raises NetError if the
    net ends in nothing else than scores.
    """
    net = test_layers(param)
    labels = _labels(net)
    ends = list(_ends(net, labels))
    needed = {name for layer in ends for name in layer.bottom} | set(_outputs(net, labels))
    layers = []
    for layer in reversed(net.layer):
        if set(layer.bottom) & labels or _is_scoring(layer) or not (needed & set(layer.top)):
            continue
        needed |= set(layer.bottom)
        layers.append(layer)
    if not any(not is_source(layer) for layer in layers):
        raise NetError(f'the net "{net.name}" has no layers between its data and its scores; give a train_val net')
    made = pb.NetParameter(name=net.name, force_backward=False)
    made.ClearField("force_backward")
    for layer in reversed(layers):
        if is_source(layer):
            made.layer.extend(_inputs(layer, [top for top in layer.top if top in needed - labels], shapes))
        else:
            made.layer.append(_plain(layer))
    made.layer.extend(ends)
    return made


def input_shapes(param: Any, path: str, input_shape: Sequence[int] | None = None) -> dict[str, tuple[int, ...]]:
    """The shapes of the blobs that data layers of phase TEST write, with the batch in front.

    The net's data sets say them, or what stands in for them as in `hollow_net`. Raises NetError.
    """
    sources = [layer for layer in test_layers(param).layer if is_source(layer)]
    if not sources:
        raise NetError(f"{path}: no layer reads data in phase TEST; give a net with one")
    with log.quiet():
        net, _ = hollow_net(pb.NetParameter(layer=sources, state=pb.NetState(phase=pb.TEST)), path, input_shape)
    return {top: net.blob(top).shape for layer in sources for top in layer.top}


def _labels(net: Any) -> set[str]:
    """The blobs that lead to nothing but the further bottoms of losses and scores."""
    blobs = {top for layer in net.layer for top in layer.top}
    first = next((layer.top[0] for layer in net.layer if is_source(layer)), "")
    labels = blobs - {first}
    users = {blob: [layer for layer in net.layer if blob in layer.bottom] for blob in blobs}
    from_sources = {top for layer in net.layer if is_source(layer) for top in layer.top}
    changed = True
    while changed:
        changed = False
        for blob in sorted(labels):
            if not (users[blob] or blob in from_sources) or not all(
                _asks(layer, blob, labels) for layer in users[blob]
            ):
                labels.discard(blob)
                changed = True
    return labels


def _asks(layer: Any, blob: str, labels: set[str]) -> bool:
    """Whether a layer reads the blob as labels only."""
    if _is_scoring(layer):
        return layer.bottom[0] != blob
    return all(top in labels for top in layer.top)


def _is_scoring(layer: Any) -> bool:
    by_type = "Loss" in layer.type or "Accuracy" in layer.type or layer.type in OTHER_SCORES
    return by_type or any(weight > 0 for weight in layer.loss_weight)


def _weight(layer: Any) -> float:
    return layer.loss_weight[0] if layer.loss_weight else 1.0


def _ends(net: Any, labels: set[str]) -> Iterator[Any]:
    """Yields the layers of probabilities in place of losses."""
    chosen: dict[str, Any] = {}
    for layer in net.layer:
        if layer.type in ENDS and len(layer.bottom) > 1:
            other = chosen.get(layer.bottom[1])
            if other is None or _weight(layer) >= _weight(other):
                chosen[layer.bottom[1]] = layer
    taken = {name for layer in net.layer for name in (layer.name, *layer.top)}
    for label, loss in chosen.items():
        if any(one.type == ENDS[loss.type] and loss.bottom[0] in one.bottom for one in net.layer):
            continue  # the net computes them for itself
        name = PROBABILITY if len(chosen) == 1 else f"{PROBABILITY}_{label}"
        while name in taken:
            name += "_"
        taken.add(name)
        layer = pb.LayerParameter(name=name, type=ENDS[loss.type], bottom=[loss.bottom[0]], top=[name])
        if loss.HasField("softmax_param") and layer.type == "Softmax":
            layer.softmax_param.CopyFrom(loss.softmax_param)
            layer.softmax_param.ClearField("engine")
        yield layer


def _outputs(net: Any, labels: set[str]) -> Iterator[str]:
    """Yields the blobs that nothing reads, or only a loss or score that has no probabilities."""
    for index, layer in enumerate(net.layer):
        if _is_scoring(layer):
            if layer.type not in ENDS and "Accuracy" not in layer.type:
                yield from (blob for blob in layer.bottom if blob not in labels)
        elif not is_source(layer):
            later = net.layer[index + 1 :]
            if layer.type in ENDS.values():  # probabilities that are there for scores
                later = [one for one in later if not _is_scoring(one)]
            read = {blob for one in later for blob in one.bottom}
            yield from (top for top in layer.top if top not in read | labels)
    if not any("Loss" in layer.type for layer in net.layer):
        yield from (layer.bottom[0] for layer in net.layer if "Accuracy" in layer.type)


def _inputs(layer: Any, tops: Iterable[str], shapes: Mapping[str, Sequence[int]]) -> Iterator[Any]:
    for top in tops:
        made = pb.LayerParameter(name=top, type="Input", top=[top])
        made.input_param.shape.add(dim=[1, *shapes[top][1:]])
        if layer.HasField("transform_param"):
            made.transform_param.CopyFrom(layer.transform_param)
            made.transform_param.ClearField("mirror")
        yield made


def _plain(layer: Any) -> Any:
    """The layer without what only training needs."""
    made = pb.LayerParameter()
    made.CopyFrom(layer)
    for field in _TRAINING:
        made.ClearField(field)
    if not any(spec.name for spec in made.param):
        made.ClearField("param")
    for field, message in made.ListFields():
        if field.name.endswith("_param") and field.message_type is not None and not hasattr(message, "extend"):
            for filler in _FILLERS:
                if filler in field.message_type.fields_by_name:
                    message.ClearField(filler)
            if not message.ListFields():
                made.ClearField(field.name)
    return made
