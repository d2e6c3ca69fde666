"""Converts arrays to images in a page."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np


def data_uri(pixels: np.ndarray) -> str:
    """A PNG of uint8 pixels, (H, W) gray or (H, W, 3) RGB, as a data URI for HTML."""
    rows = np.ascontiguousarray(pixels).reshape(pixels.shape[0], -1)
    lines = np.hstack([np.zeros((len(rows), 1), np.uint8), rows]).tobytes()  # filter type 0 begins each line
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()


def picture(values: np.ndarray) -> np.ndarray:
    """Values (C, H, W), scaled to uint8 pixels. Three channels are BGR; otherwise only the first channel counts."""
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) * (255 / (high - low) if high > low else 0)
    pixels = scaled.round().astype(np.uint8)
    return pixels[::-1].transpose(1, 2, 0) if len(values) == 3 else pixels[0]


def sheet(filters: np.ndarray) -> np.ndarray:
    """The filters (N, C, H, W) of a convolution as a grid with a white pixel between them.

    If they have neither one nor three channels, a row has the channels of one filter.
    """
    number, channels, height, width = filters.shape
    in_rows = channels not in (1, 3)
    if in_rows:
        filters = filters.reshape(-1, 1, height, width)
    columns = channels if in_rows else min(number, max(8, int(np.ceil(np.sqrt(number)))))
    pictures = [picture(one) for one in filters]
    rows = -(-len(pictures) // columns)
    shape = (rows * (height + 1) - 1, columns * (width + 1) - 1, *pictures[0].shape[2:])
    pixels = np.full(shape, 255, np.uint8)
    for index, one in enumerate(pictures):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        pixels[top : top + height, left : left + width] = one
    return pixels
