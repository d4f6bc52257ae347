"""Checks of optional parts, none of which is loaded: video recording, viewers, Weights & Biases."""

import importlib.util
import socket
import tempfile
from collections.abc import Mapping
from ctypes.util import find_library

from shoal.checks.probe import Probe
from shoal.config import DemoConfig, PlayConfig
from shoal.config.checks import HIGHEST_PORT
from shoal.errors import UsageError

GL_VARIABLE = "MUJOCO_GL"
"""Selects MuJoCo's renderer. It is read once, when MuJoCo is imported."""

_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
"""Renderers without a display, and the library that each needs."""
_DEBIAN_PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}
_ON_A_DISPLAY = frozenset({"glfw", "glx", "on", "true", "1", "enable", "enabled"})
"""Other values of MUJOCO_GL that MuJoCo 4 accepts, which are not checked."""
PORTS_TRIED = 100
_LOGIN_S = 30.0
"""How long wandb may take to tell whether it is logged in [s]."""


def choose_gl(device: str, environ: Mapping[str, str]) -> str:
    """Return the renderer: the user's choice, or EGL on a GPU whose driver has it, else OSMesa."""
    chosen = environ.get(GL_VARIABLE, "").lower().strip()
    if chosen:
        return chosen
    # Without the driver's part, EGL needs a display, or renders on the CPU as OSMesa does.
    fitting = ("egl", "osmesa") if device != "cpu" and find_library("EGL_nvidia") else ("osmesa",)
    return next((name for name in fitting if find_library(_LIBRARIES[name])), fitting[0])


def refuse_no_video(device: str, environ: Mapping[str, str]) -> None:
    """Refuse a video that cannot be rendered or encoded here."""
    gl = choose_gl(device, environ)
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError("A video was asked for, but imageio-ffmpeg is not installed: run `uv add 'shoal[video]'`.")
    if gl in _LIBRARIES and find_library(_LIBRARIES[gl]) is None:
        raise UsageError(
            f"A video was asked for, but there is no lib{_LIBRARIES[gl]} to draw with: "
            f"run `apt-get install {_DEBIAN_PACKAGES[gl]}`, or what your system calls it."
        )
    if gl not in _LIBRARIES and gl not in _ON_A_DISPLAY:
        raise UsageError(f"A video was asked for, but MUJOCO_GL is {gl}: set it to egl or osmesa, or leave it out.")


def free_viewer_port(config: PlayConfig | DemoConfig) -> int:
    """Return a free port for the web viewer, the first from `--viewer-port` on."""
    if importlib.util.find_spec("viser") is None:
        raise UsageError("The web viewer was asked for, but viser is not installed: run `uv add 'shoal[viewer]'`.")
    host, first = config.viewer_host, config.viewer_port
    last = min(first + PORTS_TRIED - 1, HIGHEST_PORT)
    reason = ""
    for port in range(first, last + 1):
        try:
            family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as trial:
                # Recently closed connections do not block a port, as for servers.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, socket.gaierror):  # The look-up fails for every port, and may take long.
                break
        else:
            return port
    raise UsageError(
        f"The viewer cannot be served at {host}, ports {first} to {last} ({reason}): pass --viewer-host 127.0.0.1, "
        "or another --viewer-port."
    )


def check_display(environ: Mapping[str, str]) -> None:
    """Refuse a native viewer without a display."""
    if not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        raise UsageError(
            "--viewer native was asked for, but there is no display (DISPLAY is not set): pass --viewer web, and look "
            "at the policy in a browser."
        )


def refuse_no_wandb(environ: Mapping[str, str], *, writes: bool) -> None:
    """Refuse W&B where it is not installed, or, if the metrics of this training are written here, not logged in.

    Without a login wandb prompts on the terminal, or raises, while a training starts.
    """
    if importlib.util.find_spec("wandb") is None:
        raise UsageError("--logger wandb was asked for, but wandb is not installed: run `uv add 'shoal[wandb]'`.")
    if not writes:
        return
    # In a process of its own: wandb keeps settings for as long as one lives.
    with tempfile.TemporaryDirectory(prefix="shoal-wandb-") as scratch:
        own = {"WANDB_CACHE_DIR": scratch, "TMPDIR": scratch}  # wandb writes logs and temporary files.
        found = Probe("shoal.checks.optional:find_login", None, {**environ, **own}).result(_LOGIN_S)
    if isinstance(found, dict) and not found["is_ready"]:
        raise UsageError(
            f"--logger wandb was asked for, but there is no login to {found['server']} here: run `wandb login`, "
            "set WANDB_API_KEY, or set WANDB_MODE=offline and send the metrics later, with `wandb sync`."
        )


def find_login(_: None) -> dict[str, str | bool]:
    """Return wandb's server, and whether wandb is logged in to it or needs no login."""
    import wandb
    from wandb.sdk.lib import wbauth

    settings = wandb.setup().settings
    is_ready = settings.mode in ("offline", "dryrun", "disabled")
    if not is_ready:
        login = wbauth.authenticate_session(host=settings.base_url, source="", prompt=False, update_session=False)
        is_ready = login is not None
    return {"server": settings.base_url, "is_ready": is_ready}
