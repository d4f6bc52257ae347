"""What to draw with, and what is missing for a film, on machines with any libraries."""

from __future__ import annotations

import sys

import pytest

from shoal.checks.film import choose_gl, refuse_no_film
from shoal.errors import UsageError


def machine_with(*libraries: str):  # noqa: ANN201  A way to look libraries up.
    return lambda name: f"lib{name}.so.1" if name in libraries else None


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
    device: str, asked: str | None, libraries: tuple[str, ...], chosen: str
) -> None:
    environ = {} if asked is None else {"MUJOCO_GL": asked}
    assert choose_gl(device, environ, machine_with(*libraries)) == chosen


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
def test_what_is_missing_is_named(device: str, environ: dict[str, str], libraries: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        refuse_no_film(device, environ, machine_with(*libraries))


def test_an_encoder_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_no_film("cpu", {}, machine_with("OSMesa"))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UsageError, match=r"imageio-ffmpeg is not installed: run `uv add 'shoal\[film\]'`"):
        refuse_no_film("cpu", {}, machine_with("OSMesa"))


def test_the_user_may_draw_on_a_display() -> None:
    refuse_no_film("cpu", {"MUJOCO_GL": "glfw"}, machine_with())
