"""Window files, and where windows go, against a plain reading of what Caffe's documents and code say."""

import math

import numpy as np
import pytest

from fcaffe.data.windows import Window, crop_window, read_window_file
from fcaffe.errors import DataError

FILE = """# 0
pictures/a.png
3 30 40
4
5 0.5 1 2 10 12
5 0.49 1 2 11 12
1 0.1 0 0 39 29
2 0.7 3 3 3 3
# 1
b.png
3 20 20
0
# 2 c.png 3 20 20 1 7 1.0 0 0 19 19
"""


@pytest.fixture
def read(tmp_path):
    def make(content, foreground=0.5, background=0.3):
        (tmp_path / "windows.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_window_file(str(tmp_path / "windows.txt"), "root/", foreground, background)

    return make


def test_windows_are_sorted_by_overlap(read, capfd):
    file = read(FILE)
    assert file.images == ["root/pictures/a.png", "root/b.png", "root/c.png"]
    assert file.foreground.tolist() == [[0, 5, 1, 2, 10, 12], [0, 2, 3, 3, 3, 3], [2, 7, 0, 0, 19, 19]]
    assert file.background.tolist() == [[0, 0, 0, 0, 39, 29]]
    lines = [line.split(None, 3)[3] for line in capfd.readouterr().err.splitlines()]
    assert lines == [
        "window_data_layer.cpp:148] num: 0 root/pictures/a.png 3 30 40 windows to process: 4",
        "window_data_layer.cpp:157] Number of images: 3",
        "window_data_layer.cpp:161] class 0 has 1 samples",
        "window_data_layer.cpp:161] class 2 has 1 samples",
        "window_data_layer.cpp:161] class 5 has 1 samples",
        "window_data_layer.cpp:161] class 7 has 1 samples",
    ]


def test_thresholds_are_compared_in_float32(read):
    assert len(read("# 0 a 3 9 9 1 1 0.7 0 0 1 1", foreground=float(np.float32(0.7))).foreground) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("0 a.png", r'windows\.txt:1: "0" stands where "#"'),
        (b"\xff\0\n" * 50, "windows.txt:1: this line has a NUL"),
        (FILE.replace("# 1", "1"), 'windows.txt:9: "1" stands where "#"'),
        ("# x a.png 3 1 1 0", "txt:1: a whole number is wanted"),
        ("# 0 a.png\n3 1.5 1 0", "txt:2: a whole number is wanted"),
        ("# 0 a.png 1 5 5 0", "image 0 has 1 channels and 0 windows"),
        ("# 0 a.png 3 5 5 -1", "has 3 channels and -1 windows"),
        ("# 0 a.png 3 5 5\n2 1 1 0 0 4 4", "ends in the middle of an image"),
        ("# 0 a.png 3 5 5\n1099511627776 1 1 0 0 4 4", "ends in the middle of an image"),
        ("# 0 a.png 3 5", "ends in the middle of an image"),
        ("# 0", "ends in the middle of an image"),
        ("# 0 a.png 3 5 5 1 1 x 0 0 4 4", "six numbers"),
        ("# 0 a.png 3 5 5 1 1 1 0 0.5 4 4", "must be whole numbers"),
        ("# 0 a.png 3 5 5 1 1 1 0 nan 4 4", "must be whole numbers"),
        ("# 0 a.png 3 5 5 1 1 1 0 1e12 4 4", "must be whole numbers"),
        ("# 0 a.png 3 5 5 1 0 1 0 0 4 4", "foreground window of class 0"),
    ],
)
def test_errors_name_the_line(read, content, words):
    with pytest.raises(DataError, match=words):
        read(content)


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="cannot read the window file"):
        read_window_file(str(tmp_path), "", 0.5, 0.5)


# --- where windows go -------------------------------------------------------------------------------------------------


def c_round(value):
    return math.floor(value + 0.5) if value >= 0 else -math.floor(-value + 0.5)


def expected_placement(window, height, width, crop, pad, square, mirror):
    """Pixel by pixel: which column (and row) of the output a column of the grown window falls on."""
    f = np.float32
    x1, y1, x2, y2 = window[2:]
    if not pad and not square:
        return x1, y1, x2, y2, crop, crop, 0, 0
    grow = f(crop) / f(crop - 2 * pad)
    halves = [f(f(y2 - y1 + 1) / f(2)), f(f(x2 - x1 + 1) / f(2))]
    middles = [f(y1) + halves[0], f(x1) + halves[1]]
    if square:
        halves = [max(halves)] * 2
    result = []
    for middle, half, size, flip in ((middles[0], halves[0], height, False), (middles[1], halves[1], width, mirror)):
        low, high = c_round(middle - half * grow), c_round(middle + half * grow)
        zoom = f(crop) / f(high - low + 1)
        inside = [place for place in range(low, high + 1) if 0 <= place < size]
        before, after = inside[0] - low, high - inside[-1]
        start = c_round(f(after if flip else before) * zoom)
        length = min(c_round(f(len(inside)) * zoom), crop - start)
        result.append((inside[0], inside[-1], start, length))
    (top, bottom, start_y, rows), (left, right, start_x, columns) = result
    return left, top, right, bottom, rows, columns, start_y, start_x


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("pad", [0, 1, 16])
@pytest.mark.parametrize("mirror", [False, True])
def test_placement(square, pad, mirror):
    rng = np.random.default_rng(5)
    for _ in range(300):
        height, width = rng.integers(1, 60, 2).tolist()
        x1, x2 = sorted(rng.integers(0, width, 2).tolist())
        y1, y2 = sorted(rng.integers(0, height, 2).tolist())
        window = Window(0, 1, x1, y1, x2, y2)
        wanted = expected_placement(window, height, width, 47, pad, square, mirror)
        if min(wanted[4:6]) < 1:
            continue  # a sliver that rounds to nothing
        assert tuple(crop_window(window, height, width, 47, pad, square, mirror)) == wanted


@pytest.mark.parametrize(
    ("box", "pad"), [((0, 0, 10, 5), 0), ((-1, 0, 3, 3), 0), ((5, 5, 4, 6), 0), ((30, 30, 40, 40), 2)]
)
def test_windows_outside_of_the_image_are_refused(box, pad):
    with pytest.raises(DataError, match=r"window \(.*\) does not lie in the image, which has 8 x 10 pixels"):
        crop_window(Window(0, 1, *box), 8, 10, 16, pad, False, False)
