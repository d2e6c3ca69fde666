import sys

import numpy as np
import pytest

from fcaffe.data.hdf5 import Hdf5Rows, read_hdf5_list, read_rows
from fcaffe.errors import DataError
from tests.conftest import GOLDEN

PART = str(GOLDEN / "interop" / "part0.h5")


def test_without_h5py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"pip install h5py"):
        read_rows(PART, ["x"])


def test_a_list_has_names_between_blanks(tmp_path):
    (tmp_path / "list").write_text("a.h5\n\n  b/c.h5 d.h5\r\n")
    assert read_hdf5_list(str(tmp_path / "list")) == ["a.h5", "b/c.h5", "d.h5"]
    (tmp_path / "list").write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        read_hdf5_list(str(tmp_path / "list"))
    with pytest.raises(DataError, match="No such file"):
        read_hdf5_list(str(tmp_path / "none"))
    with pytest.raises(DataError, match=r'part0.h5" is an HDF5 file itself; give .* a text file that lists'):
        read_hdf5_list(PART)


class TestWithH5py:
    @pytest.fixture(autouse=True)
    def library(self):
        return pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")

    @pytest.fixture
    def write(self, library, tmp_path):
        """write(name=array, ...) makes a file and returns its path."""

        def make(file="made.h5", **arrays):
            with library.File(tmp_path / file, "w") as made:
                for name, array in arrays.items():
                    made[name] = array
            return str(tmp_path / file)

        return make

    @pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4", "u1", "i8", ">i2"])
    def test_numbers_of_any_type_become_float32(self, write, kind, capfd):
        values = np.arange(24).reshape(4, 3, 2).astype(kind)
        path = write(x=values)
        for _ in range(2):
            (read,) = read_rows(path, ["x"])
            assert read.dtype == np.float32 and np.array_equal(read, values)
        name = "H5T_FLOAT" if "f" in kind else "H5T_INTEGER"
        assert capfd.readouterr().err.count(f"Datatype class: {name}") == 1

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"y": np.zeros(3)}, 'it has no dataset "x", the name of a top; it has y'),
            ({"x/y": np.zeros(3)}, 'it has no dataset "x".*it has x'),
            ({"x": np.zeros((2, 3)), "y": np.zeros(3)}, r"equally many rows, and some \(x: \(2, 3\), y: \(3,\)\)"),
            ({"x": np.zeros((0, 3)), "y": np.zeros(0)}, "equally many rows, and some"),
            ({"x": np.float32(1)}, "single value"),
            ({"x": np.array([b"text"])}, r"values of type \|S4; only numbers"),
            ({"x": [1j]}, "values of type complex128; only numbers"),
            ({"x": [True]}, "values of type bool; only numbers"),
        ],
    )
    def test_what_is_no_table_of_numbers(self, write, arrays, words):
        path = write(**arrays)
        with pytest.raises(DataError, match=f"{path}: .*{words}"):
            read_rows(path, ["x", *(["y"] if len(arrays) > 1 else [])])

    def test_what_is_no_hdf5(self, tmp_path):
        (tmp_path / "text").write_text("hello")
        for name in ("text", "none", "."):
            with pytest.raises(DataError, match=r"cannot read .*missing, damaged, cut off or no HDF5") as caught:
                read_rows(str(tmp_path / name), ["x"])
            assert "\n" not in str(caught.value)

    def test_nothing_is_allocated_for_rows_that_are_not_there(self, library, tmp_path):
        with library.File(tmp_path / "huge.h5", "w") as file:
            file.create_dataset("x", (2**40, 2**10), np.float32, chunks=(64, 64))
        with pytest.raises(DataError, match=r'"/x" of shape \(1099511627776, 1024\) is not in the file'):
            read_rows(str(tmp_path / "huge.h5"), ["x"])

    def test_well_packed_rows_are_read(self, library, tmp_path):
        with library.File(tmp_path / "packed.h5", "w") as file:
            file.create_dataset("x", data=np.zeros((1000, 1000)), chunks=(1000, 1000), compression="gzip")
        assert read_rows(str(tmp_path / "packed.h5"), ["x"])[0].shape == (1000, 1000)

    # --- rows of several files ----------------------------------------------------------------------------------------

    @pytest.fixture
    def parts(self, write, tmp_path, monkeypatch):
        """list.txt of three files, with 12 rows that hold 0, 1, 2, ..."""
        monkeypatch.chdir(tmp_path)
        for name, rows in (("a", range(5)), ("b", range(5, 6)), ("c", range(6, 12))):
            write(f"{name}.h5", x=np.array(rows), y=np.array(rows)[:, None] * [1, 10])
        (tmp_path / "list.txt").write_text("a.h5 b.h5 c.h5")
        return lambda shuffle=False, seed=1: Hdf5Rows("list.txt", ["x", "y"], shuffle, seed)

    def test_batches_run_over_the_ends_of_files(self, parts):
        rows = parts()
        assert rows.row_shapes == [(), (2,)]
        for batch in range(8):
            x, y = rows.read(7)
            assert x.tolist() == [(7 * batch + index) % 12 for index in range(7)]
            assert np.array_equal(y, x[:, None] * [1, 10])
        x, _ = rows.read(40)
        assert len(x) == 40 and rows.position == 96

    def test_shuffled_rounds_have_each_row_once_in_ever_another_order(self, parts):
        rows = parts(shuffle=True)
        rounds = []
        for _ in range(6):
            x, y = rows.read(12)
            assert np.array_equal(y, x[:, None] * [1, 10])
            rounds.append(tuple(x.astype(int)))
        assert all(sorted(order) == list(range(12)) for order in rounds)
        assert len(set(rounds)) == 6
        files = {tuple(dict.fromkeys((row > 4) + (row > 5) for row in order)) for order in rounds}
        assert len(files) > 1, "the order of the files changes as well"
        assert parts(shuffle=True).read(12)[0].tolist() == list(rounds[0])
        assert parts(shuffle=True, seed=2).read(12)[0].tolist() != list(rounds[0])

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("position", [0, 4, 5, 6, 12, 13, 41])
    def test_seek_continues_as_if_so_many_had_been_read(self, parts, shuffle, position):
        rows, other = parts(shuffle), parts(shuffle)
        if position:
            rows.read(position)
        other.read(3)
        other.seek(position)
        assert other.position == position
        assert np.array_equal(other.read(30)[1], rows.read(30)[1])

    def test_rows_of_another_shape_name_the_file(self, parts, write):
        rows = parts()
        write("c.h5", x=np.zeros(6), y=np.zeros((6, 3)))
        with pytest.raises(DataError, match=r'"c\.h5": rows of "y" have the shape \(3,\), those before \(2,\)'):
            rows.read(12)
        with pytest.raises(DataError, match=r'"c\.h5": rows of "y"'):
            parts()  # before any row of it is read
