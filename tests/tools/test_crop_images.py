"""`fcaffe resize_and_crop_images`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcaffe.cli import main
from fcaffe.data.images import decode_image, encode_image
from fcaffe.tools.image_sets import crop_image

pytest.importorskip("cv2")


@pytest.mark.parametrize("shape", [(10, 20), (20, 10), (12, 12), (7, 19)])
def test_the_middle_square(shape: tuple[int, int]) -> None:
    assert crop_image(np.zeros((3, *shape), np.uint8), 8).shape == (3, 8, 8)
    pixels = np.zeros((1, 8, 24), np.uint8)
    pixels[:, :, 8:16] = 200
    assert (crop_image(pixels, 8) == 200).all()


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in/a").mkdir(parents=True)
    Path("in/a/b.png").write_bytes(encode_image(np.full((3, 30, 40), 7, np.uint8), "png"))
    Path("in/c.jpg").write_bytes(b"no picture")
    Path("list").write_text("a/b.png\nin/c.jpg 3\n")
    words = ["resize_and_crop_images", "--input=list", "--input_folder=in/", "--output_folder", "out"]
    assert main([*words, "--output_side_length=16", "--num_clients=2"]) == 0
    out, err = capsys.readouterr()
    assert out == "out: 1 pictures, 1 could not be read\n" and '"in/c.jpg" cannot be decoded' in err
    made = decode_image(Path("out/a/b.png").read_bytes(), "made")
    assert made.shape == (3, 16, 16) and (made == 7).all()
    for wrong in ([words[0]], [*words, "--image_lib=pil"], [*words, "--output_side_length=0"]):
        assert main(wrong) == 134
