"""Check of video recording: a library that renders without a display, and an encoder. Neither is loaded."""

from collections.abc import Mapping
from ctypes.util import find_library
from importlib.util import find_spec

from shoal.errors import UsageError

GL_VARIABLE = "MUJOCO_GL"
"""Selects MuJoCo's renderer. It is read once, when MuJoCo is imported."""

_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
"""Renderers without a display, and the library that each needs."""
_DEBIAN_PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}
_ON_A_DISPLAY = frozenset({"glfw", "glx", "on", "true", "1", "enable", "enabled"})
"""Other values of MUJOCO_GL that MuJoCo 4 accepts, which are not checked."""


def choose_gl(device: str, environ: Mapping[str, str]) -> str:
    """Return the renderer: the user's choice, or EGL on a GPU whose driver has it, else OSMesa."""
    chosen = environ.get(GL_VARIABLE, "").lower().strip()
    if chosen:
        return chosen
    # Without the driver's part, EGL needs a display, or renders on the CPU as OSMesa does.
    fitting = ("egl", "osmesa") if device != "cpu" and find_library("EGL_nvidia") else ("osmesa",)
    return next((name for name in fitting if find_library(_LIBRARIES[name])), fitting[0])


def refuse_no_film(device: str, environ: Mapping[str, str]) -> None:
    """Refuse a video that cannot be rendered or encoded here."""
    gl = choose_gl(device, environ)
    if find_spec("imageio_ffmpeg") is None:
        raise UsageError("A film was asked for, but imageio-ffmpeg is not installed: run `uv add 'shoal[film]'`.")
    if gl in _LIBRARIES and find_library(_LIBRARIES[gl]) is None:
        raise UsageError(
            f"A film was asked for, but there is no lib{_LIBRARIES[gl]} to draw with: "
            f"run `apt-get install {_DEBIAN_PACKAGES[gl]}`, or what your system calls it."
        )
    if gl not in _LIBRARIES and gl not in _ON_A_DISPLAY:
        raise UsageError(f"A film was asked for, but MUJOCO_GL is {gl}: set it to egl or osmesa, or leave it out.")
