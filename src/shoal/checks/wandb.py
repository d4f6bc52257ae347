"""Check of Weights & Biases: whether it is installed, and either offline or logged in.

Without a login wandb prompts on the terminal, or raises, while a training starts.
"""

import importlib.util
import subprocess
import tempfile
from collections.abc import Mapping

from shoal import PYTHON
from shoal.errors import UsageError

_TIMEOUT_S = 30.0
_QUERY = """
import wandb
from wandb.sdk.lib import wbauth

settings = wandb.setup().settings
if settings.mode not in ("offline", "dryrun", "disabled"):
    try:
        login = wbauth.authenticate_session(host=settings.base_url, source="", prompt=False, update_session=False)
    except TypeError:
        raise SystemExit  # An older release, which cannot be asked without a prompt.
    if login is None:
        print("no login to", settings.base_url)
"""
"""A program that asks wandb for its login, in a process of its own: wandb keeps settings for as long as one lives."""


def refuse_no_wandb(environ: Mapping[str, str], *, writes: bool) -> None:
    """Refuse W&B where it is not installed, or, if the metrics of this training are written here, not logged in."""
    if importlib.util.find_spec("wandb") is None:
        raise UsageError("--logger wandb was asked for, but wandb is not installed: run `uv add 'shoal[wandb]'`.")
    server = _server_without_login(environ) if writes else None
    if server is not None:
        raise UsageError(
            f"--logger wandb was asked for, but nobody is logged in to {server} here: run `wandb login`, "
            "set WANDB_API_KEY, or set WANDB_MODE=offline and send the metrics later, with `wandb sync`."
        )


def _server_without_login(environ: Mapping[str, str]) -> str | None:
    """Return the server for which wandb finds no login. None with a login, offline, and where wandb fails."""
    with tempfile.TemporaryDirectory(prefix="shoal-wandb-") as scratch:
        own = {"WANDB_CACHE_DIR": scratch, "TMPDIR": scratch}  # wandb writes logs and temporary files.
        try:
            answer = subprocess.run(
                [*PYTHON, "-c", _QUERY],
                env={**environ, **own},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    last_line = answer.stdout.strip().rpartition("\n")[2]
    return last_line.removeprefix("no login to ") if last_line.startswith("no login to ") else None
