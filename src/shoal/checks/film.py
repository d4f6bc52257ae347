"""Check of video recording: a library that renders without a display, and an encoder. Neither is loaded."""

from collections.abc import Callable, Mapping
from ctypes.util import find_library
from importlib.util import find_spec

from shoal.errors import UsageError

GL_VARIABLE = "MUJOCO_GL"
"""Selects MuJoCo's renderer. It is read once, when MuJoCo is imported."""

_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
"""Renderers without a display, and the library that each needs."""
_PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}
"""Their Debian packages."""
_ON_A_DISPLAY = frozenset({"glfw", "glx", "on", "true", "1", "enable", "enabled"})
"""Other values of MUJOCO_GL that MuJoCo 4 accepts, which are not checked."""


def choose_gl(device: str, environ: Mapping[str, str], find: Callable[[str], str | None] = find_library) -> str:
    """Return the renderer: the user's choice, or EGL on a GPU whose driver has it, else OSMesa.

    Args:
        device: Device of the environments.
        environ: Environment variables.
        find: Returns the file of a library, or None where there is none.
    """
    chosen = environ.get(GL_VARIABLE, "").lower().strip()
    if chosen:
        return chosen
    # Without the driver's part, EGL needs a display, or renders on the CPU as OSMesa does.
    fitting = ("egl", "osmesa") if device != "cpu" and find("EGL_nvidia") else ("osmesa",)
    return next((name for name in fitting if find(_LIBRARIES[name])), fitting[0])


def refuse_no_film(device: str, environ: Mapping[str, str], find: Callable[[str], str | None] = find_library) -> None:
    """Refuse a video that cannot be rendered or encoded here.

    Raises:
        UsageError: A package or library is missing.
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
