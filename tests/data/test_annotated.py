"""SSD's annotated images: boxes follow every augmentation, and what is random depends on the seed alone."""

import numpy as np
import pytest

from fcaffe.data.annotated import CORNERS, AnnotatedBatches, draw_windows, project
from fcaffe.data.backends import new_database, open_database
from fcaffe.data.images import encode_image
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Transformer
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.share import Share, Turns

HEIGHT, WIDTH = 60, 80
BOXES = np.array([[0.1, 0.2, 0.5, 0.6], [0.55, 0.3, 0.9, 0.95]])  # of two colours, and far apart
COLOURS = np.array([[0, 0, 255], [0, 255, 0]])  # blue, green, red

SAMPLER = """
batch_sampler { max_sample: 1 max_trials: 1 }
batch_sampler { sampler { min_scale: 0.4 max_scale: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }
  sample_constraint { min_jaccard_overlap: 0.2 } max_sample: 1 max_trials: 50 }
"""
AUGMENTATIONS = {
    "nothing": ("", ""),
    "mirror": ("mirror: true", ""),
    "crop": ("crop_size: 50 mirror: true", ""),
    "warp": ("resize_param { height: 90 width: 50 interp_mode: AREA interp_mode: CUBIC } mirror: true", ""),
    "small": ("resize_param { resize_mode: FIT_SMALL_SIZE height: 45 width: 45 } crop_h: 45 crop_w: 45", ""),
    "pad": ("resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 90 width: 70 pad_value: 0 }", ""),
    "expand": ("expand_param { prob: 1 max_expand_ratio: 3 } resize_param { height: 300 width: 300 }", ""),
    "sample": ("resize_param { height: 120 width: 120 } mirror: true", SAMPLER),
    "all": (
        "resize_param { height: 300 width: 300 } mirror: true expand_param { prob: 0.5 max_expand_ratio: 2 }"
        " emit_constraint { emit_type: CENTER } distort_param { brightness_prob: 0.5 brightness_delta: 20"
        " contrast_prob: 0.5 contrast_lower: 0.8 contrast_upper: 1.2 saturation_prob: 0.5 saturation_lower: 0.8"
        " saturation_upper: 1.2 hue_prob: 0.5 hue_delta: 5 }",
        SAMPLER,
    ),
}


def picture() -> np.ndarray:
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for (xmin, ymin, xmax, ymax), colour in zip(BOXES, COLOURS, strict=True):
        rows, columns = (
            slice(round(ymin * HEIGHT), round(ymax * HEIGHT)),
            slice(round(xmin * WIDTH), round(xmax * WIDTH)),
        )
        pixels[rows, columns] = colour
    return pixels.transpose(2, 0, 1)


def annotated(boxes=BOXES, encoded=True):
    image = picture()
    record = pb.AnnotatedDatum(type=pb.AnnotatedDatum.BBOX)
    if encoded:
        record.datum.data, record.datum.encoded = encode_image(image, "png"), True
    else:
        record.datum.data = image.tobytes()
        record.datum.channels, record.datum.height, record.datum.width = image.shape
    for label, corners in enumerate(boxes, 1):
        box = record.annotation_group.add(group_label=label).annotation.add(instance_id=0).bbox
        box.xmin, box.ymin, box.xmax, box.ymax = corners
    return record


@pytest.fixture
def database(tmp_path):
    """database(records): the path of an LMDB with them."""

    def make(records):
        path = str(tmp_path / "db")
        with new_database(path, "lmdb") as writer:
            for index, record in enumerate(records):
                writer.put(f"{index:08d}".encode(), record.SerializeToString())
        return path

    return make


def batches(path: str, transform: str, samplers: str = "", batch_size: int = 4, share: Share | None = None):
    layer = pb.LayerParameter(
        transform_param=parse_text(transform, pb.TransformationParameter),
        annotated_data_param=parse_text(samplers, pb.AnnotatedDataParameter),
    )
    transformer = Transformer(layer.transform_param, pb.TRAIN, seeds=True)
    transformer.seed(CaffeRandom(1))
    source = AnnotatedBatches(open_database(path, pb.DataParameter.LMDB), transformer, batch_size, layer)
    source.divide(share or Share(0, batch_size, batch_size), Turns())
    return source


def filled(source, count: int = 1) -> list[Batch]:
    found = []
    for _ in range(count):
        batch = Batch()
        source.fill(batch)
        found.append(batch)
    return found


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("encoded", [True, False])
def test_boxes_follow_the_picture(database, name, encoded):
    path = database([annotated(encoded=encoded)] * 4)
    seen = 0
    for batch in filled(batches(path, *AUGMENTATIONS[name]), 4):
        for image, objects in zip(batch.data, batch.objects, strict=True):
            for row in objects:
                seen += 1
                other, own = (image[2], image[1]) if row[0] == 2 else (image[1], image[2])
                rows, columns = np.nonzero((own > 100) & (other < 100))
                height, width = own.shape
                found = (
                    columns.min() / width,
                    rows.min() / height,
                    (columns.max() + 1) / width,
                    (rows.max() + 1) / height,
                )
                np.testing.assert_allclose(row[CORNERS], found, atol=2.5 / min(height, width, HEIGHT / 2))
    assert seen > 8  # some of the 32 objects leave the picture


def test_the_bits_do_not_depend_on_the_number_of_workers(database):
    path = database([annotated(BOXES[: index % 3]) for index in range(5)])
    text = AUGMENTATIONS["all"]
    whole = filled(batches(path, *text, batch_size=6), 3)
    parts = [filled(batches(path, *text, 6, Share(first, 2, 6)), 3) for first in (0, 2, 4)]
    for index, batch in enumerate(whole):
        np.testing.assert_array_equal(batch.data, np.concatenate([part[index].data for part in parts]))
        objects = [one for part in parts for one in part[index].objects]
        for ours, theirs in zip(batch.objects, objects, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_windows_meet_their_constraints():
    text = "batch_sampler { sampler { min_scale: 0.1 } sample_constraint { %s } max_trials: 200 max_sample: 1 }"
    for constraint, fits in (
        ("min_jaccard_overlap: 0.5", lambda shared, box, window: shared / (box + window - shared) >= 0.5),
        ("max_jaccard_overlap: 0.1", lambda shared, box, window: shared / (box + window - shared) <= 0.1),
        ("min_object_coverage: 0.9", lambda shared, box, window: shared / box >= 0.9),
        ("min_sample_coverage: 0.6", lambda shared, box, window: shared / window >= 0.6),
    ):
        (sampler,) = parse_text(text % constraint, pb.AnnotatedDataParameter).batch_sampler
        windows = [window for seed in range(40) for window in draw_windows(sampler, BOXES, CaffeRandom(seed))]
        assert 20 < len(windows) <= 40
        for window in windows:
            left, top, right, bottom = window
            assert 0 <= left < right <= 1 + 1e-6 and 0 <= top < bottom <= 1 + 1e-6
            shared = [
                max(min(right, x1) - max(left, x0), 0) * max(min(bottom, y1) - max(top, y0), 0)
                for x0, y0, x1, y1 in BOXES
            ]
            areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in BOXES]
            assert any(fits(s, a, (right - left) * (bottom - top)) for s, a in zip(shared, areas, strict=True))


def test_emit_constraints_and_odd_boxes():
    boxes = [[-0.5, 0, 0.4, 1], [0.5, 0.5, 0.5, 0.7], [0.9, 0.9, 1.5, 1.5], [0.2, 0.2, 0.1, 0.4], [2, 2, 3, 3]]
    objects = np.insert(np.array(boxes), [0, 0, 4], 0, axis=1)
    np.testing.assert_allclose(
        project(objects, (0, 0, 1, 1))[:, CORNERS], [[0, 0, 0.4, 1], [0.9, 0.9, 1, 1]], atol=1e-6
    )
    centre = parse_text("emit_type: CENTER", pb.EmitConstraint)
    assert not len(project(objects, (0, 0, 1, 1), centre))
    covered = parse_text("emit_type: MIN_OVERLAP emit_overlap: 0.4", pb.EmitConstraint)
    assert len(project(objects, (0, 0, 1, 1), covered)) == 1


@pytest.mark.parametrize(
    ("transform", "samplers", "problem"),
    [
        ("resize_param { height: 20 }", "", "height and width"),
        ("resize_param { height: 20 width: 20 height_scale: 5 }", "", "height_scale"),
        ("expand_param { max_expand_ratio: 0.5 }", "", "max_expand_ratio"),
        ("distort_param { contrast_prob: 1 contrast_lower: 2 contrast_upper: 1 }", "", "swap"),
        ("", "batch_sampler { sampler { min_scale: 0 } }", "min_scale"),
        ("", "batch_sampler { sampler { min_aspect_ratio: 2 } }", "aspect_ratio"),
    ],
)
def test_wrong_parameters(database, transform, samplers, problem):
    path = database([annotated()])
    with pytest.raises(DataError, match=problem):
        filled(batches(path, transform, samplers))


def test_a_record_that_is_no_annotated_datum(database):
    with pytest.raises(DataError, match="convert_annoset"):
        batches(database([pb.Datum(channels=1, height=1, width=1)]), "")


def test_several_resizes_are_chosen_by_their_probability():
    """Flat pictures of 20 x 10 pixels, warped or padded."""
    resize = "resize_param {{ prob: {} height: 20 width: 20 resize_mode: {} }}"
    transform = resize.format(0.25, "FIT_LARGE_SIZE_AND_PAD") + resize.format(0.75, "WARP")
    pixels = np.full((10, 20, 3), 200, np.uint8)
    transformer = Transformer(parse_text(transform, pb.TransformationParameter), pb.TRAIN)
    transformer.seed(CaffeRandom(1))
    padded = 0
    for decision in transformer.decide(400):
        image = transformer.augment(pixels.transpose(2, 0, 1), decision)
        is_padded = not image[:, 0].any()
        corners = transformer.resize(decision).boxes(np.array([[0, 0, 1, 1]]), 10, 20)
        np.testing.assert_allclose(corners, [[0, 0.25, 1, 0.75] if is_padded else [0, 0, 1, 1]])
        padded += is_padded
    assert 70 < padded < 130
    with pytest.raises(DataError, match=r"must add up to 1, not 1\.5"):
        Transformer(parse_text(transform.replace("0.25", "0.75"), pb.TransformationParameter), pb.TRAIN)
