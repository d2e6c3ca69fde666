"""What a layer carries from one pass to the next is its parameters, the run's random stream and what `state` gives.

Checked for all layer types: after some passes a fresh layer takes these over, and goes on as the first one does, which
itself goes back to them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fcaffe.layers  # noqa: F401 - registers all types
from fcaffe.data import array_to_datum
from fcaffe.data.backends import write_database
from fcaffe.data.images import encode_image
from fcaffe.net import layer_types
from fcaffe.net.layer import State
from fcaffe.net.registry import follows_batches
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng.counter import TRAINING, Moment
from tests.cases import each_of
from tests.conftest import GOLDEN
from tests.engine_choice import host
from tests.layers.examples import EXAMPLES, IMAGES, Example
from tests.layers.test_contract import Case, bottom_values, values

pytestmark = pytest.mark.usefixtures("on_each_engine")

PASSES, MORE = 3, 3

USERS = 'python_param { module: "tests.pycaffe.user_layers" layer: "Counting" }'
HERE = {  # examples that the other checks could not stand
    "LSTM": [Example("recurrent_param { num_output: 3 }", ((4, 3, 2), (4, 3)), labels={1: 2})],
    "Python": [Example(USERS, IMAGES, has_gradient=False)],
    "RNN": [Example("recurrent_param { num_output: 3 }", ((4, 3, 2), (4, 3)), labels={1: 2})],
}
ALL = [(kind, example) for kind in EXAMPLES for example in (*EXAMPLES[kind], *HERE.get(kind, []))]

TRANSFORM = "transform_param { crop_size: 8 mirror: true }"
READERS = {
    "AnnotatedData": f'{TRANSFORM} data_param {{ source: "annotated_lmdb" backend: LMDB batch_size: 4 }} '
    "annotated_data_param { batch_sampler { sampler { min_scale: 0.9 } max_sample: 1 } }",
    "Data": f'{TRANSFORM} data_param {{ source: "{GOLDEN}/fillers/crop_lmdb" backend: LMDB batch_size: 3 }}',
    "DenseImageData": 'dense_image_data_param { source: "pairs.txt" batch_size: 4 shuffle: true rand_skip: 3 '
    "mirror: true crop_height: 5 crop_width: 6 }",
    "HDF5Data": 'top: "y" hdf5_data_param { source: "parts.txt" batch_size: 5 shuffle: true }',
    "ImageData": f'{TRANSFORM} image_data_param {{ source: "list.txt" batch_size: 4 shuffle: true rand_skip: 3 }}',
    "MemoryData": "memory_data_param { batch_size: 2 channels: 1 height: 2 width: 3 }",
    "WindowData": f'{TRANSFORM} window_data_param {{ source: "windows.txt" batch_size: 4 fg_fraction: 0.5 }}',
}
WITHOUT_TOPS = {"HDF5Output"}  # which writes one pass, and refuses a second


Carried = tuple[list[np.ndarray], State, bytes]  # parameters, state, random stream


class Run(Case):
    """A layer and its blobs, passed through again and again with other bottoms each time."""

    def __init__(self, kind: str, example: Example, seed: int = 5) -> None:
        super().__init__(kind, example, seed=seed)
        if kind == "MemoryData":
            self.layer.reset(values((6, 1, 2, 3), 1), np.arange(6))

    def write_batch(self, number: int) -> None:
        for index, (blob, array) in enumerate(zip(self.bottom, bottom_values(self.example), strict=True)):
            if index not in self.example.values:
                array = np.roll(array.reshape(-1), number).reshape(array.shape)
                if index in self.example.labels:
                    array = (array + number) % self.example.labels[index]
            blob.data[...] = blob.xp.asarray(array)

    def go_on(self, first: int, passes: int) -> list[np.ndarray]:
        """Everything that comes out of passes number `first` and so on, gradients and parameters included."""
        found = []
        for number in range(first, first + passes):
            self.write_batch(number)
            self.context.begin_pass(Moment(TRAINING, number))
            self.layer.reshape(self.bottom, self.top)
            self.layer.forward(self.bottom, self.top)
            found += [host(top.data) for top in self.top]
            for blob in self.layer.blobs:
                blob.diff[...] = 0
            if self.example.has_gradient and self.bottom:
                for index, top in enumerate(self.top):
                    top.diff[...] = top.xp.asarray(values(top.shape, index + number))
                self.layer.backward(self.top, self.propagate_down, self.bottom)
                asked = zip(self.bottom, self.propagate_down, strict=True)
                found += [host(blob.diff) for blob, wanted in asked if wanted]
            found += [host(array) for blob in self.layer.blobs for array in (blob.data, blob.diff)]
        return found

    def carried(self) -> Carried:
        """What is carried over to the next pass, as copies."""
        return [host(blob.data) for blob in self.layer.blobs], self.layer.state(), self.context.random.state()

    def take_over(self, blobs: list[np.ndarray], state: State, random: bytes) -> None:
        for ours, theirs in zip(self.layer.blobs, blobs, strict=True):
            ours.data[...] = ours.xp.asarray(theirs)
        self.context.random.set_state(random)
        self.layer.restore_state(state)


def same(ours: Carried, theirs: Carried) -> bool:
    arrays, others = ([*blobs, *(state[name] for name in ours[1])] for blobs, state, _ in (ours, theirs))
    return all(map(np.array_equal, arrays, others)) and ours[2] == theirs[2]


def check(kind: str, example: Example, passes: int = PASSES) -> None:
    straight, fresh = Run(kind, example), Run(kind, example, seed=6)
    straight.go_on(0, passes)
    carried = straight.carried()
    expected = straight.go_on(passes, MORE)
    for run in (fresh, straight):
        run.take_over(*carried)
        assert same(run.carried(), carried)
        for ours, theirs in zip(run.go_on(passes, MORE), expected, strict=True):
            assert np.array_equal(ours, theirs), f"{kind} carries something that `state` does not give"
        run.layer.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with what the readers read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pictures(folder: Path) -> None:
    pictures = np.random.default_rng(7).integers(0, 256, (6, 3, 10, 12), np.uint8)
    for index, pixels in enumerate(pictures):
        (folder / f"{index}.png").write_bytes(encode_image(pixels, "png"))
    (folder / "pairs.txt").write_text("".join(f"{index}.png {5 - index}.png\n" for index in range(6)))
    (folder / "list.txt").write_text("".join(f"{index}.png {index}\n" for index in range(6)))
    windows = "2\n1 0.8 0 0 8 8\n2 0.2 1 1 9 9\n"
    (folder / "windows.txt").write_text("".join(f"# {index}\n{index}.png\n3\n10\n12\n{windows}" for index in range(6)))


def write_annotated(folder: Path) -> None:
    def record(index: int) -> bytes:
        pixels = np.random.default_rng(index).integers(0, 256, (3, 10, 12), np.uint8)
        annotated = pb.AnnotatedDatum(datum=array_to_datum(pixels), type=pb.AnnotatedDatum.BBOX)
        box = annotated.annotation_group.add(group_label=index).annotation.add(instance_id=0).bbox
        box.xmin, box.ymin, box.xmax, box.ymax = 0.1 * index, 0.2, 0.9, 0.8
        return annotated.SerializeToString()

    write_database(str(folder / "annotated_lmdb"), ((b"%d" % index, record(index)) for index in range(6)), "lmdb")


def write_parts(folder: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")
    for index in range(2):
        with h5py.File(folder / f"{index}.h5", "w") as file:
            for name in "xy":
                file[name] = values((7, 2), index)
    (folder / "parts.txt").write_text("0.h5\n1.h5\n")


def test_all_types_are_checked() -> None:
    assert set(layer_types()) == {*EXAMPLES, *READERS, *WITHOUT_TOPS}


@each_of(ALL)
def test_a_layer_goes_on(kind: str, example: Example) -> None:
    check(kind, example)


@each_of((kind, example) for kind, example in ALL if kind != "Python")
def test_who_carries_something_from_batch_to_batch_of_a_test_says_so(kind: str, example: Example) -> None:
    """So that one worker runs the whole test."""
    run = Run(kind, replace(example, phase="TEST", has_gradient=False))
    run.context.noise = "counter"
    before = run.carried()
    run.go_on(0, PASSES)
    if not same(run.carried(), before):
        assert follows_batches(run.layer.param)


@pytest.mark.parametrize("passes", [0, 1, 7])
@pytest.mark.parametrize("kind", READERS)
def test_a_reader_goes_on(kind: str, passes: int, folder: Path) -> None:
    if kind in ("DenseImageData", "ImageData", "WindowData"):
        pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")
        write_pictures(folder)
    elif kind == "HDF5Data":
        write_parts(folder)
    elif kind == "AnnotatedData":
        write_annotated(folder)
    names = 'top: "x" ' if kind == "HDF5Data" else 'top: "data" top: "label" '
    check(kind, Example(names + READERS[kind], tops=2), passes)
