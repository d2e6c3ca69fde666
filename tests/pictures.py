"""Small folders of pictures for tests: coloured shapes of three classes, in files of many kinds."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import numpy as np

CLASSES = {"blaue Blüte": (200, 60, 40), "rose": (60, 40, 200), "tulip": (40, 180, 60)}

# A JPEG of 8 x 8 pixels in CMYK, which OpenCV does not write.
CMYK = base64.b64decode(
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwAoHB4jHhkoIyEjLSsoMDxkQTw3Nzx7WF1JZJGAmZaPgIyKoLTmw6Cq2q2KjMj/y9ru9f///5vB////+v"
    "/m/f/4/8AAFAgACAAIBEMRAE0RAFkRAEsRAP/EAB8AAAEFAQEBAQEBAAAAAAAAAAABAgMEBQYHCAkKC//EALUQAAIBAwMCBAMFBQQEAAABfQEC"
    "AwAEEQUSITFBBhNRYQcicRQygZGhCCNCscEVUtHwJDNicoIJChYXGBkaJSYnKCkqNDU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dX"
    "Z3eHl6g4SFhoeIiYqSk5SVlpeYmZqio6Slpqeoqaqys7S1tre4ubrCw8TFxsfIycrS09TV1tfY2drh4uPk5ebn6Onq8fLz9PX29/j5+v/aAA4E"
    "QwBNAFkASwAAPwDNqjV6tmv/2Q=="
)


def picture(draw: np.random.Generator, color: tuple[int, int, int], height: int, width: int) -> np.ndarray:
    """A square of this colour (blue, green, red) on a ground of another: height x width x 3."""
    pixels = np.full((height, width, 3), draw.integers(90, 160, 3), np.uint8)
    top, left = height // 4, width // 4
    pixels[top : top + height // 2, left : left + width // 2] = color
    return (pixels + draw.integers(0, 30, pixels.shape)).astype(np.uint8)


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """The JPEG with EXIF data that say how it is turned."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 1) + entry + bytes(4)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


def write_pictures(folder: Path, each: int = 10, side: int = 24) -> None:
    """Folders of classes with `each` good pictures, of many kinds, and some that cannot be read."""
    import cv2

    draw = np.random.default_rng(5)
    for name, color in CLASSES.items():
        inner = folder / name / "more"
        inner.mkdir(parents=True)
        for index in range(each):
            height, width = (int(side + draw.integers(0, 20)) for _ in range(2))
            pixels = picture(draw, color, height, width)
            kinds = {
                0: (".png", cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)),
                1: (".png", pixels.astype(np.uint16) * 257),
                2: (".PNG", np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])),
                3: (".jpg", pixels),
                4: (".bmp", pixels),
            }
            ending, stored = kinds.get(index, (".jpeg", pixels))
            content = bytes(cv2.imencode(ending.lower(), stored)[1])
            if index == 3:
                content = with_orientation(content, 6)
            place = inner if index % 4 == 3 else folder / name
            (place / f"Bild {index} ä{ending}").write_bytes(content)
        (folder / name / "cut.jpg").write_bytes(content[: len(content) // 2])
        (folder / name / "no picture.jpg").write_text("hello")
        (folder / name / "empty.png").touch()
        (folder / name / "Thumbs.db").write_bytes(b"x")
    (folder / "rose" / "cmyk.jpg").write_bytes(CMYK)
