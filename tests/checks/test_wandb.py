"""Logins to W&B, as wandb itself finds them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from shoal.checks.optional import refuse_no_wandb
from shoal.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef" * 3
NETRC = f"machine {{}}\n  login user\n  password {KEY}\n"


@dataclass(frozen=True)
class Place:
    """Files and variables that W&B reads."""

    logged_in: bool = True
    environ: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])


PLACES = {
    "nothing": Place(logged_in=False),
    "a key": Place(environ={"WANDB_API_KEY": KEY}),
    "offline": Place(environ={"WANDB_MODE": "offline"}),
    "online": Place(logged_in=False, environ={"WANDB_MODE": "online"}),
    "a login in another file": Place(environ={"NETRC": "logins"}, files={"logins": NETRC.format("api.wandb.ai")}),
    "a login to another server": Place(
        logged_in=False,
        environ={"WANDB_BASE_URL": "https://fish.example.org"},
        files={".netrc": NETRC.format("api.wandb.ai")},
    ),
    "settings that cannot be read": Place(logged_in=False, files={"wandb/settings": "mode offline\n"}),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_training_needs_a_login_unless_it_is_offline(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = PLACES[name]
    for variable in [each for each in os.environ if each.startswith("WANDB") or each == "NETRC"]:
        monkeypatch.delenv(variable)
    for variable, value in {"HOME": str(tmp_path), **place.environ}.items():
        monkeypatch.setenv(variable, value)
    for file, text in place.files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    refuse_no_wandb(os.environ, writes=False)
    if place.logged_in:
        refuse_no_wandb(os.environ, writes=True)
        return
    server = place.environ.get("WANDB_BASE_URL", r"https://\S+")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"there is no login to {server} here: run `wandb login`"):
        refuse_no_wandb(os.environ, writes=True)
    assert sorted(tmp_path.rglob("*")) == before
