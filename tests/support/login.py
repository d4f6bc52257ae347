"""Logging in to machines over SSH: keys of hosts and users, what each side knows of the other, and the server."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from support.commands import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SERVER = "/usr/sbin/sshd"
LOG = "sshd.log"
"""What the server says, beside its host key."""
_SERVER_SETTINGS = """\
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
"""
_START_TIMEOUT_S = 30.0


def write_user_key(home: Path) -> str:
    """Give a user a key and return its public half."""
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    return _make_key(home / ".ssh/id_ed25519")


def authorise(home: Path, public_key: str) -> None:
    """Let the owner of a key, and nobody else, log in to this home."""
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (home / ".ssh/authorized_keys").write_text(f"{public_key}\n", encoding="utf-8")


def write_host_key(etc_ssh: Path) -> str:
    """Give a machine a new host key, and return its public half."""
    (etc_ssh / "sshd_config").write_text(_SERVER_SETTINGS, encoding="utf-8")
    (etc_ssh / "ssh_host_ed25519_key").unlink(missing_ok=True)
    return _make_key(etc_ssh / "ssh_host_ed25519_key")


def write_client_files(home: Path, host_keys: Mapping[tuple[str, ...], str]) -> None:
    """Let a user know the keys of nodes, by their names and addresses, and have a configuration of SSH."""
    lines = [f"{','.join(names)} {key}\n" for names, key in host_keys.items()]
    (home / ".ssh/known_hosts").write_text("".join(lines), encoding="utf-8")
    names = " ".join(name for name, *_ in host_keys)
    config = f"Host {names}\n  User root\n  IdentityFile ~/.ssh/id_ed25519\n"
    (home / ".ssh/config").write_text(config, encoding="utf-8")


def server_words() -> list[str]:
    """Return the words that start a server which stays in the foreground."""
    return [SERVER, "-D", "-E", f"/etc/ssh/{LOG}"]


def wait_for_server(process: subprocess.Popen[str], etc_ssh: Path) -> None:
    """Wait until a server that was just started listens, on addresses of both kinds."""
    log = etc_ssh / LOG

    def text() -> str:
        return log.read_text(encoding="utf-8") if log.exists() else ""

    def listens() -> bool:
        return text().count("Server listening") == 2 or process.poll() is not None

    assert wait_until(listens, _START_TIMEOUT_S), f"sshd does not listen: {text()}"
    assert process.poll() is None, f"sshd has ended: {text()}"


def _make_key(file: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)], check=True)
    return file.with_suffix(".pub").read_text(encoding="utf-8").strip()
