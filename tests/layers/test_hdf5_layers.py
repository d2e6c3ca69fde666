"""HDF5Data and HDF5Output."""

import numpy as np
import pytest

from fcaffe.errors import DataError, FcaffeError, NetError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom
from tests.conftest import GOLDEN, make_net
from tests.layers.test_data_layer import make

h5py = pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")

INTEROP = GOLDEN / "interop"


@pytest.fixture
def golden(monkeypatch):
    monkeypatch.chdir(INTEROP)
    with np.load("hdf5_layers.npz") as file:
        return dict(file)


def hdf5_data(parameters="batch_size: 6", source="parts.txt", tops="xy", more="", random=None):
    names = " ".join(f'top: "{top}"' for top in tops)
    text = f"""layer {{ name: "rows" type: "HDF5Data" {names} {more}
               hdf5_data_param {{ source: "{source}" {parameters} }} }}"""
    return make(text, pb.TRAIN, random or CaffeRandom(1), len(tops))


def test_reads_what_caffe_read(golden):
    layer, top = make(str(golden["prototxt"]), pb.TEST, CaffeRandom(1))
    for batch in range(6):
        layer.forward([], top)
        assert np.array_equal(top[0].data, golden[f"x_{batch}"])
        assert np.array_equal(top[1].data, golden[f"y_{batch}"])


def test_says_what_caffe_says_and_draws_nothing(golden, capfd):
    random = CaffeRandom(3)
    before = random.state()
    for _ in range(2):
        layer, top = hdf5_data("batch_size: 6 shuffle: true", random=random)
        layer.forward([], top)
    lines = [line.split(None, 3)[3] for line in capfd.readouterr().err.splitlines()]
    assert lines == [
        "layer_factory.hpp:77] Creating layer rows",
        "hdf5_data_layer.cpp:81] Loading list of HDF5 filenames from: parts.txt",
        "hdf5_data_layer.cpp:95] Number of HDF5 files: 3",
        "hdf5.cpp:33] Datatype class: H5T_FLOAT",
        "layer_factory.hpp:77] Creating layer rows",
        "hdf5_data_layer.cpp:81] Loading list of HDF5 filenames from: parts.txt",
        "hdf5_data_layer.cpp:95] Number of HDF5 files: 3",
    ]
    assert random.state() == before


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"parameters": ""}, NetError, "batch_size must be positive"),
        ({"parameters": f"batch_size: {2**32 - 1}"}, DataError, "4294967295 x .*lower batch_size"),
        ({"more": "transform_param { scale: 2 }"}, NetError, "does not transform data"),
        ({"source": "none"}, DataError, "cannot read the list of HDF5 files"),
        ({"source": "records.json"}, DataError, "cannot read"),
        ({"tops": "xz"}, DataError, 'part0.h5: it has no dataset "z"'),
    ],
)
def test_errors_at_setup_name_the_layer(golden, arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        hdf5_data(**arguments)
    assert str(caught.value).startswith('layer "rows" (HDF5Data): ')
    assert "\n" not in str(caught.value)


# --- HDF5Output -------------------------------------------------------------------------------------------------------


@pytest.fixture
def output_net(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = make_net(str(golden["output_prototxt"]), "TEST")
    net.blob("x").data[...] = golden["in_x"]
    net.blob("y").data[...] = golden["in_y"]
    return net


def test_writes_what_caffe_wrote(output_net, tmp_path, capfd):
    output_net.forward()
    assert [path.name for path in tmp_path.iterdir()] == ["written.h5"]
    with h5py.File(tmp_path / "written.h5") as ours, h5py.File(INTEROP / "written.h5") as theirs:
        assert set(ours) == set(theirs) == {"data", "label"}
        for name in theirs:
            assert ours[name].dtype == theirs[name].dtype
            assert np.array_equal(ours[name][...], theirs[name][...])
    said = capfd.readouterr().err
    assert "hdf5_output_layer.cpp:33] Saving HDF5 file written.h5" in said
    assert "hdf5_output_layer.cpp:38] Successfully saved 3 rows" in said


def test_a_second_pass_is_refused_and_the_first_stays(output_net, tmp_path):
    output_net.forward()
    before = (tmp_path / "written.h5").read_bytes()
    with pytest.raises(NetError, match=r'layer "out".*holds the first pass already'):
        output_net.forward()
    assert (tmp_path / "written.h5").read_bytes() == before


def test_images_are_written_in_their_logical_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = make_net(
        """layer { name: "in" type: "Input" top: "x" top: "y"
                   input_param { shape { dim: 2 dim: 3 dim: 4 dim: 5 } shape { dim: 2 } } }
           layer { name: "out" type: "HDF5Output" bottom: "x" bottom: "y" hdf5_output_param { file_name: "o.h5" } }"""
    )
    net.blob("x").data[...] = np.arange(120).reshape(2, 3, 4, 5)
    net.forward()
    with h5py.File(tmp_path / "o.h5") as file:
        assert np.array_equal(file["data"][...].ravel(), np.arange(120))


@pytest.mark.parametrize(
    ("shapes", "path", "words"),
    [
        ("shape { dim: 2 } shape { dim: 3 }", "o.h5", "equally many samples"),
        ("shape { dim: 1 dim: 1 dim: 1 dim: 1 dim: 1 } shape { dim: 1 }", "o.h5", "at most four axes"),
        ("shape { dim: 2 }", "none/o.h5", 'file_name "none/o.h5"'),
        ("shape { dim: 2 }", "", 'file_name ""'),
    ],
)
def test_output_errors_name_the_layer(tmp_path, monkeypatch, shapes, path, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FcaffeError, match=words) as caught:
        make_net(
            f"""layer {{ name: "in" type: "Input" top: "x" top: "y" input_param {{ {shapes} }} }}
                layer {{ name: "out" type: "HDF5Output" bottom: "x" bottom: "y"
                         hdf5_output_param {{ file_name: "{path}" }} }}"""
        )
    assert str(caught.value).startswith('layer "out" (HDF5Output): ')
