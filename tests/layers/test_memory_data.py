import numpy as np
import pytest

import fcaffe.layers.memory_data  # noqa: F401 - registers the type
from fcaffe.data import array_to_datum
from fcaffe.engines import cpu_engine
from fcaffe.errors import NetError
from fcaffe.net.blob import Blob
from fcaffe.net.context import Context
from fcaffe.net.registry import create_layer
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom

IMAGES = np.random.default_rng(2).random((6, 2, 3, 4), np.float32)
LABELS = np.arange(6, dtype=np.float32)


def make(transform="", sizes="batch_size: 2 channels: 2 height: 3 width: 4", random=None):
    text = f"""name: "given" type: "MemoryData" top: "data" top: "label" phase: TRAIN {transform}
               memory_data_param {{ {sizes} }}"""
    context = Context(cpu_engine(), random or CaffeRandom(1))
    layer = create_layer(parse_text(text, pb.LayerParameter), context)
    top = [Blob(np, channels_last=True) for _ in range(2)]
    layer.initialize([], top)
    return layer, top


def test_cycles_through_what_reset_gave():
    layer, top = make()
    assert top[0].shape == (2, 2, 3, 4) and top[1].shape == (2,)
    layer.reset(IMAGES, LABELS.reshape(6, 1, 1, 1))
    for start in (0, 2, 4, 0):
        layer.forward([], top)
        assert np.array_equal(top[0].data, IMAGES[start : start + 2])
        assert np.array_equal(top[1].data, LABELS[start : start + 2])
    layer.reset(IMAGES[2:4], LABELS[2:4])
    layer.forward([], top)
    assert np.array_equal(top[1].data, [2, 3])


def test_added_records_are_transformed_and_used_up_first():
    layer, top = make("transform_param { crop_size: 3 scale: 2 }", "batch_size: 1 channels: 2 height: 3 width: 3")
    pixels = np.arange(40, dtype=np.uint8).reshape(2, 4, 5)
    layer.add([array_to_datum(pixels, 5), array_to_datum(pixels, 6)])
    with pytest.raises(NetError, match="used up"):
        layer.add([array_to_datum(pixels, 7)])
    crops = [2.0 * pixels[:, row : row + 3, column : column + 3] for row in range(2) for column in range(3)]
    for label in (5, 6):
        layer.forward([], top)
        assert top[1].data.tolist() == [label]
        assert any(np.array_equal(top[0].data[0], crop) for crop in crops)
    layer.add([array_to_datum(pixels, 7)])
    layer.forward([], top)
    assert top[1].data.tolist() == [7]


@pytest.mark.parametrize(("transform", "draws"), [("", 0), ("transform_param { mirror: true }", 1)])
def test_takes_one_draw_if_there_is_anything_random(transform, draws):
    random, same = CaffeRandom(4), CaffeRandom(4)
    make(transform, random=random)
    same.draws(draws)
    assert random.draw() == same.draw()


def test_warns_that_reset_does_not_transform(capfd):
    layer, _ = make("transform_param { scale: 2 }")
    layer.reset(IMAGES, LABELS)
    assert "does not transform" in capfd.readouterr().err


def test_errors_name_the_layer_and_the_shapes():
    with pytest.raises(NetError, match=r'layer "given" \(MemoryData\).*all positive'):
        make(sizes="batch_size: 2 channels: 2 height: 3")
    layer, top = make()
    with pytest.raises(NetError, match=r"no data yet: call reset"):
        layer.forward([], top)
    with pytest.raises(NetError, match=r"shape \(n, 2, 3, 4\), not \(6, 2, 3, 5\)"):
        layer.reset(np.zeros((6, 2, 3, 5)), LABELS)
    with pytest.raises(NetError, match=r"one label for each image, not \(5,\) for 6"):
        layer.reset(IMAGES, LABELS[:5])
    with pytest.raises(NetError, match=r"one label for each image, not \(6, 2\) for 6"):
        layer.reset(IMAGES, np.zeros((6, 2)))
    with pytest.raises(NetError, match="multiple of batch_size 2, not 5"):
        layer.reset(IMAGES[:5], LABELS[:5])
    with pytest.raises(NetError, match=r"shape \(2, 3, 4\) after cropping, not \(1, 3, 4\)"):
        layer.add([array_to_datum(np.zeros((1, 3, 4), np.uint8), 0)] * 2)
