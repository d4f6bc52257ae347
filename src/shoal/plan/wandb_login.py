"""Whether W&B could be written to: its package is there, and it is either offline or logged in.

Without a login wandb asks on the terminal, or raises, in the middle of the start of a training. So its rules of where a
login is are written out here: importing wandb costs a second. Keys are looked for and never read into a message.
"""

from __future__ import annotations

import configparser
import importlib.util
import netrc
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_WITHOUT_LOGIN = ("offline", "dryrun", "disabled")
"""Values of WANDB_MODE."""

_PUBLIC = "https://api.wandb.ai"

_PUBLIC_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com", "forge.coreweave.com")
"""Names of W&B's own server: a newer wandb uses another one, with the logins of both."""


def refuse_no_wandb(environ: Mapping[str, str], *, writes: bool) -> None:
    """Refuse W&B where it is not installed, or not logged in.

    Args:
        environ: Environment variables.
        writes: Whether this process, or one that it starts, is the one that writes to W&B.

    Raises:
        UsageError: It says which.
    """
    if importlib.util.find_spec("wandb") is None:
        message = "--logger wandb was asked for, but wandb is not installed: run `uv add 'shoal[wandb]'`."
        raise UsageError(message)
    if writes and not _may_write(environ):
        server = _server(environ, _settings(environ))
        message = (
            f"--logger wandb was asked for, but nobody is logged in to {server} here: run `wandb login`, "
            "set WANDB_API_KEY, or set WANDB_MODE=offline and send the metrics later, with `wandb sync`."
        )
        raise UsageError(message)


def _may_write(environ: Mapping[str, str]) -> bool:
    """Whether wandb would neither ask nor refuse."""
    settings = _settings(environ)
    if environ.get("WANDB_MODE", settings.get("mode")) in _WITHOUT_LOGIN:
        return True
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE") or settings.get("api_key"):
        return True
    # SageMaker hands in a key so.
    return Path("secrets.env").exists() or _in_netrc(environ, urlsplit(_server(environ, settings)).netloc)


def _server(environ: Mapping[str, str], settings: Mapping[str, str]) -> str:
    return environ.get("WANDB_BASE_URL") or settings.get("base_url") or _PUBLIC


def _in_netrc(environ: Mapping[str, str], host: str) -> bool:
    """Whether `wandb login` has left a key for this server."""
    files = [Path(named)] if (named := environ.get("NETRC")) else [Path("~/.netrc"), Path("~/_netrc")]
    file = next((path for path in map(Path.expanduser, files) if path.exists()), None)
    if file is None:
        return False
    try:
        logins = netrc.netrc(file)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    hosts = _PUBLIC_HOSTS if host in _PUBLIC_HOSTS else (host,)
    return any((login := logins.authenticators(name)) and login[2] for name in hosts)


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what `wandb login --host` and `wandb offline` have written; the current directory's file wins."""
    home = Path(environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    local = Path(".wandb" if Path(".wandb").exists() else "wandb")
    settings: dict[str, str] = {}
    for file in (home / "settings", local / "settings"):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
        settings |= dict(parser["default"]) if parser.has_section("default") else {}
    return settings
