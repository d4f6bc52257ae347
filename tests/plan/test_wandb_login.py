"""Where a login to W&B is looked for, held against where wandb itself finds one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from shoal.errors import UsageError
from shoal.plan.wandb_login import refuse_no_wandb

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef" * 3
NETRC = f"machine {{}}\n  login user\n  password {KEY}\n"

ASK_WANDB = """
import wandb
from wandb.sdk.lib import wbauth

settings = wandb.setup().settings
login = lambda: wbauth.authenticate_session(host=settings.base_url, source="", prompt=False, update_session=False)
print(settings.mode in ("offline", "dryrun", "disabled") or login() is not None)
"""


@dataclass(frozen=True)
class Place:
    """A machine, as far as it has to do with W&B."""

    writes: bool
    environ: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])


PLACES = {
    "nothing": Place(writes=False),
    "a key": Place(writes=True, environ={"WANDB_API_KEY": KEY}),
    "an empty key": Place(writes=False, environ={"WANDB_API_KEY": ""}),
    "a token": Place(writes=True, environ={"WANDB_IDENTITY_TOKEN_FILE": "token"}),
    "offline": Place(writes=True, environ={"WANDB_MODE": "offline"}),
    "disabled": Place(writes=True, environ={"WANDB_MODE": "disabled"}),
    "online": Place(writes=False, environ={"WANDB_MODE": "online"}),
    "a login": Place(writes=True, files={".netrc": NETRC.format("api.wandb.ai")}),
    "a login in another file": Place(
        writes=True, environ={"NETRC": "logins"}, files={"logins": NETRC.format("api.wandb.ai")}
    ),
    "a login elsewhere": Place(writes=False, files={".netrc": NETRC.format("example.org")}),
    "a login to an own server": Place(
        writes=True,
        environ={"WANDB_BASE_URL": "https://fish.example.org:8080"},
        files={".netrc": NETRC.format("fish.example.org:8080")},
    ),
    "a login to W&B where another server is meant": Place(
        writes=False,
        environ={"WANDB_BASE_URL": "https://fish.example.org"},
        files={".netrc": NETRC.format("api.wandb.ai")},
    ),
    "a file of logins that cannot be read": Place(writes=False, files={".netrc": "machine\n"}),
    "an own server in the settings": Place(
        writes=True,
        files={
            ".config/wandb/settings": "[default]\nbase_url = https://fish.example.org\n",
            ".netrc": NETRC.format("fish.example.org"),
        },
    ),
    "offline in this directory": Place(writes=True, files={"wandb/settings": "[default]\nmode = offline\n"}),
    "online in this directory": Place(
        writes=False,
        files={
            ".config/wandb/settings": "[default]\nmode = offline\n",
            "wandb/settings": "[default]\nmode = online\n",
        },
    ),
    "settings that cannot be read": Place(writes=False, files={"wandb/settings": "mode offline\n"}),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_login_is_found_where_wandb_finds_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = PLACES[name]
    for variable in [each for each in os.environ if each.startswith("WANDB") or each == "NETRC"]:
        monkeypatch.delenv(variable)
    for variable, value in {"HOME": str(tmp_path), **place.environ}.items():
        monkeypatch.setenv(variable, value)
    for file, text in place.files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    asked = subprocess.run([sys.executable, "-c", ASK_WANDB], capture_output=True, text=True, check=False)
    assert asked.stdout == f"{place.writes}\n", asked.stderr
    refuse_no_wandb(os.environ, writes=False)
    if place.writes:
        refuse_no_wandb(os.environ, writes=True)
    else:
        server = place.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
        with pytest.raises(UsageError, match=f"nobody is logged in to {server} here: run `wandb login`"):
            refuse_no_wandb(os.environ, writes=True)
