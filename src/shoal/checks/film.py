"""What films need of this machine: a library that draws without a display, and an encoder. Looked up, not loaded."""

from __future__ import annotations

from ctypes.util import find_library
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GL_VARIABLE = "MUJOCO_GL"
"""Tells MuJoCo what to draw with. It is read once, when MuJoCo is imported."""

_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
"""What draws without a display, and the library that each needs."""
_PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}
"""Debian's packages of them."""
_ON_A_DISPLAY = frozenset({"glfw", "glx", "on", "true", "1", "enable", "enabled"})
"""Other values of MUJOCO_GL by which MuJoCo 4 draws, and which are the user's own affair."""


def choose_gl(device: str, environ: Mapping[str, str], find: Callable[[str], str | None] = find_library) -> str:
    """Return what to draw with: what the user has chosen, or EGL on a GPU whose driver has it, else OSMesa.

    Args:
        device: Where the environments are simulated.
        environ: Environment variables.
        find: Returns the file of a library, or None where there is none.
    """
    asked = environ.get(GL_VARIABLE, "").lower().strip()
    if asked:
        return asked
    # Without the driver's part, EGL is there for a display only, or draws on the CPU as OSMesa does.
    fitting = ("egl", "osmesa") if device != "cpu" and find("EGL_nvidia") else ("osmesa",)
    return next((name for name in fitting if find(_LIBRARIES[name])), fitting[0])


def refuse_no_film(device: str, environ: Mapping[str, str], find: Callable[[str], str | None] = find_library) -> None:
    """Refuse a film that could not be drawn or encoded here.

    Raises:
        UsageError: Something is missing; names what to install.
    """
    gl = choose_gl(device, environ, find)
    message = None
    if find_spec("imageio_ffmpeg") is None:
        message = "A film was asked for, but imageio-ffmpeg is not installed: run `uv add 'shoal[film]'`."
    elif gl in _LIBRARIES and find(_LIBRARIES[gl]) is None:
        message = (
            f"A film was asked for, but there is no lib{_LIBRARIES[gl]} to draw with: "
            f"run `apt-get install {_PACKAGES[gl]}`, or what your system calls it."
        )
    elif gl not in _LIBRARIES and gl not in _ON_A_DISPLAY:
        message = f"A film was asked for, but MUJOCO_GL is {gl}: set it to egl or osmesa, or leave it out."
    if message is not None:
        raise UsageError(message)
