"""What to draw with, and what is missing for a video, on machines with any libraries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from shoal.checks import optional
from shoal.checks.optional import choose_gl, refuse_no_video
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let this machine have these libraries alone."""

    def replace(*libraries: str) -> None:
        monkeypatch.setattr(optional, "find_library", lambda name: f"lib{name}.so.1" if name in libraries else None)

    return replace


ALL = ("EGL", "EGL_nvidia", "OSMesa")


@pytest.mark.parametrize(
    ("device", "asked", "libraries", "chosen"),
    [
        ("cpu", None, ALL, "osmesa"),
        ("cuda:1", None, ALL, "egl"),
        ("cuda:0", None, ("EGL", "OSMesa"), "osmesa"),  # A container without the driver's graphics.
        ("cuda:0", None, ("EGL_nvidia", "OSMesa"), "osmesa"),
        ("cuda:0", None, ("EGL_nvidia",), "egl"),
        ("cuda:0", None, (), "osmesa"),
        ("cuda:0", "osmesa", ALL, "osmesa"),
        ("cpu", "EGL", ALL, "egl"),
        ("cpu", "glfw", (), "glfw"),
        ("cpu", "", ALL, "osmesa"),
    ],
)
def test_egl_draws_on_a_gpu_and_osmesa_elsewhere(
    device: str, asked: str | None, libraries: tuple[str, ...], chosen: str, install: Callable[..., None]
) -> None:
    install(*libraries)
    environ = {} if asked is None else {"MUJOCO_GL": asked}
    assert choose_gl(device, environ) == chosen


@pytest.mark.parametrize(
    ("device", "environ", "libraries", "said"),
    [
        ("cpu", {}, (), r"no libOSMesa to draw with: run `apt-get install libosmesa6`"),
        ("cpu", {"MUJOCO_GL": "egl"}, ("OSMesa",), r"no libEGL to draw with: run `apt-get install libegl1`"),
        ("cuda:0", {}, ("EGL_nvidia",), r"no libEGL to draw with: run `apt-get install libegl1`"),
        ("cpu", {"MUJOCO_GL": "bogus"}, ALL, r"MUJOCO_GL is bogus: set it to egl or osmesa"),
        ("cpu", {"MUJOCO_GL": "off"}, ALL, r"MUJOCO_GL is off: set it to egl or osmesa"),
    ],
)
def test_what_is_missing_is_named(
    device: str, environ: dict[str, str], libraries: tuple[str, ...], said: str, install: Callable[..., None]
) -> None:
    install(*libraries)
    with pytest.raises(UsageError, match=said):
        refuse_no_video(device, environ)


def test_an_encoder_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> None:
    install("OSMesa")
    refuse_no_video("cpu", {})
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UsageError, match=r"imageio-ffmpeg is not installed: run `uv add 'shoal\[video\]'`"):
        refuse_no_video("cpu", {})


def test_the_user_may_draw_on_a_display(install: Callable[..., None]) -> None:
    install()
    refuse_no_video("cpu", {"MUJOCO_GL": "glfw"})
