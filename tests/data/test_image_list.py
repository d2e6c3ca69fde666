import pytest

from fcaffe.data.image_list import ListedImage, read_image_list
from fcaffe.errors import DataError
from tests.soon import soon


@pytest.fixture
def listed(tmp_path):
    def read(content):
        (tmp_path / "list.txt").write_bytes(content)
        return read_image_list(str(tmp_path / "list.txt"))

    return read


def test_a_path_a_blank_and_a_label(listed):
    content = b"a.png 3\nsub folder/b c.png -1\r\n\nd.png\t12  \n  e.png 0"
    paths = ["a.png", "sub folder/b c.png", "d.png", "  e.png"]
    assert listed(content) == [ListedImage(*pair) for pair in zip(paths, [3, -1, 12, 0], strict=True)]


def test_without_a_label_it_is_0_as_in_caffe(listed):
    assert listed(b"a.png\nb.png\n") == [ListedImage("a.png", 0), ListedImage("b.png", 0)]


def test_any_file_name_will_do(listed, tmp_path):
    name = b"\xe4\xff.png"
    assert [open(tmp_path / image.path, "wb").close() for image in listed(name + b" 1")] == [None]


@pytest.mark.parametrize("label", ["cat", "1.5.2", "99999999999", "0x1", "nan", "."])
def test_a_label_that_is_none_is_named_with_its_line(listed, label):
    with pytest.raises(DataError, match=rf'list\.txt:3: "{label}" is no label'):
        listed(b"a.png 1\n\nb.png " + label.encode())


def test_no_list(tmp_path):
    with pytest.raises(DataError, match=r'cannot read the list of images ".*none": No such file'):
        read_image_list(str(tmp_path / "none"))
    with pytest.raises(DataError, match="Is a directory"):
        read_image_list(str(tmp_path))


def test_long_lines_take_no_time(listed):
    with soon():
        assert len(listed(b" a" * 200000 + b" 1\n" + b"b" * 400000)) == 2
