"""Layers of detection nets in ONNX: priors are constants, and NonMaxSuppression chooses boxes."""

from __future__ import annotations

from fcaffe.data.boxes import CENTER_SIZE, CORNER
from fcaffe.engines.elementwise import FLT_MAX
from fcaffe.onnx.writing.graph import Step, writes


@writes("PriorBox")
def prior_box(step: Step) -> str:
    step.layer_has(
        prior_box_param="min_size max_size aspect_ratio flip clip variance offset "
        "img_size img_h img_w step step_h step_w"
    )
    return step.array(step.layer.priors(*step.bottoms), "priors")


@writes("DetectionOutput")
def detection_output(step: Step) -> str:
    """Rows for each image in turn; if there are none, rows that say that nothing was found.

    NonMaxSuppression exchanges corners that have the wrong order, while fcaffe never suppresses such a box.
    """
    step.layer_has(
        detection_output_param="background_label_id save_output_param visualize visualize_threshold save_file"
    )
    p = step.param.detection_output_param
    cut = "cut the net before it, and decode in your own code"
    if not p.share_location:
        raise step.refuse(f"NonMaxSuppression has one set of boxes for all classes (share_location: true); {cut}")
    if p.nms_param.eta < 1 and p.nms_param.nms_threshold > 0.5:
        raise step.refuse(f"the threshold of NonMaxSuppression is fixed (eta: 1); {cut}")
    images, priors = step.bottoms[0][0], step.bottoms[2][2] // 4
    boxes = _decoded(step, images, priors)
    scores = step.reshape(step.inputs[1], step.bottoms[1], (images, priors, p.num_classes))
    labels = step.integers(step.layer.labels, "labels")
    scores = step.op("Gather", step.op("Transpose", scores, perm=[0, 2, 1]), labels, axis=1)
    if p.nms_param.HasField("top_k") and 0 <= p.nms_param.top_k < priors:
        scores = _highest(step, scores, p.nms_param.top_k)
    rows = [_of_image(step, image, boxes, scores) for image in range(images)]
    found = step.op("Concat", *rows, axis=0)
    count = step.op("Shape", found, end=1)
    nothing = step.array([[image, *[-1] * 6] for image in range(images)], "nothing")
    fake = step.integers([images], "images")
    zero = step.integers([0], "zero")
    end = step.op("Where", step.op("Greater", count, zero), count, fake)
    found = step.op("Slice", step.op("Concat", found, nothing, axis=0), zero, end, zero)
    return step.op("Unsqueeze", found, step.integers([0, 1], "axes"))


def _decoded(step: Step, images: int, priors: int) -> str:
    """The boxes (N, P, 4)."""
    p = step.param.detection_output_param
    codes = step.reshape(step.inputs[0], step.bottoms[0], (images, priors, 4))
    prior, variance = step.split(step.reshape(step.inputs[2], step.bottoms[2], (2, priors, 4)), [1, 1])
    if not p.variance_encoded_in_target:
        codes = step.op("Mul", codes, variance)
    if p.code_type == CORNER:
        return step.op("Add", prior, codes)
    low, high = step.split(prior, [2, 2], 2)
    sides = step.op("Sub", high, low)
    if p.code_type != CENTER_SIZE:
        return step.op("Add", prior, step.op("Mul", codes, step.op("Concat", sides, sides, axis=2)))
    moves, growth = step.split(codes, [2, 2], 2)
    centres = step.op("Add", step.times(step.op("Add", low, high), 0.5), step.op("Mul", moves, sides))
    half = step.times(step.op("Mul", step.op("Exp", growth), sides), 0.5)
    return step.op("Concat", step.op("Sub", centres, half), step.op("Add", centres, half), axis=2)


def _highest(step: Step, scores: str, count: int) -> str:
    """The scores (N, L, P), of which all but the highest of each class are below all others."""
    highest, _ = step.ops("TopK", scores, step.integers([max(1, count)], "count"), outputs=2, axis=2)
    least = step.reduce("ReduceMin", highest, [2])
    return step.op("Where", step.op("Less", scores, least), step.array(-FLT_MAX, "below"), scores)


def _of_image(step: Step, image: int, boxes: str, scores: str) -> str:
    """The rows (D, 7) of one image."""
    p = step.param.detection_output_param
    index = step.integers([image], "image")
    boxes, scores = (step.op("Gather", x, index, axis=0) for x in (boxes, scores))
    lowest = p.confidence_threshold if p.HasField("confidence_threshold") else -FLT_MAX
    chosen = step.op(
        "NonMaxSuppression",
        boxes,
        scores,
        step.integers([step.bottoms[2][2] // 4], "most"),
        step.array([min(1, p.nms_param.nms_threshold)], "overlap"),
        step.array([lowest], "lowest"),
    )  # rows of 0, index of the class, index of the box
    zeros, classes, positions = step.split(chosen, [1, 1, 1], 1)
    score = step.op("GatherND", scores, chosen)
    label = step.op("Gather", step.array(step.layer.labels, "names"), classes)
    box = step.op("GatherND", boxes, step.op("Concat", zeros, positions, axis=1))
    column = step.op("Unsqueeze", score, step.integers([1], "column"))
    rows = step.op("Concat", step.plus(step.cast(zeros, "FLOAT"), image), label, column, box, axis=1)
    if p.keep_top_k < 0:
        return rows
    kept = step.op("Min", step.op("Shape", score), step.integers([p.keep_top_k], "kept"))
    _, best = step.ops("TopK", score, kept, outputs=2)
    in_order, _ = step.ops("TopK", best, kept, outputs=2, largest=0)
    return step.op("Gather", rows, in_order)
