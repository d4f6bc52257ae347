"""Videos as their viewers see them, and where on a picture a colour is."""

from __future__ import annotations

from ctypes.util import find_library
from typing import TYPE_CHECKING

import imageio_ffmpeg
import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

draws = pytest.mark.skipif(find_library("OSMesa") is None, reason="libOSMesa is missing: apt-get install libosmesa6")
"""Marks tests that draw."""

_FAR = 40
"""How much stronger a colour's own channel is in what has that colour, in 256ths."""


def frames_of(video: Path) -> tuple[np.ndarray, float]:
    """Return the pictures of a video, shape (frames, height, width, 3), and how many it shows a second."""
    reader = imageio_ffmpeg.read_frames(str(video))
    told = next(reader)
    assert isinstance(told, dict)
    assert (told["codec"], told["pix_fmt"].partition("(")[0]) == ("h264", "yuv420p")
    width, height = told["size"]
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader if isinstance(frame, bytes)]
    return np.stack(frames), told["fps"]


def blue(picture: np.ndarray) -> tuple[float, float]:
    """Return the middle of what is blue, from the left and from the top [pixels]."""
    return _middle(picture, 2, 0)


def orange(picture: np.ndarray) -> tuple[float, float]:
    """Return the middle of what is orange, from the left and from the top [pixels]."""
    return _middle(picture, 0, 2)


def _middle(picture: np.ndarray, much: int, little: int) -> tuple[float, float]:
    colours = picture.astype(int)
    rows, columns = np.nonzero(colours[..., much] - colours[..., little] > _FAR)
    assert len(rows) > 0
    return float(columns.mean()), float(rows.mean())
