"""Reaching another machine by the system's own `ssh`, and what its complaints mean.

`ssh` verifies host keys, and knows the user's configuration, keys, agents and jump hosts. What runs there gets its
directory, environment and orders over its standard input: a command line can be read by everybody.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import PYTHON
from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.launch.channel import Channel
from shoal.procfs import how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.launch.channel import Message

FORWARDED = (
    *("PATH", "LD_LIBRARY*", "LIBRARY_PATH", "PYTHON*", "CUDA*", "TORCH*", "PYTORCH*", "NCCL*"),  # As torchrunx does.
    *("GLOO*", "OMP*", "MKL*", "GLIBC_TUNABLES", "MUJOCO*", "WARP*", "WANDB*", "SHOAL*"),
)
"""Patterns of environment variables that other machines get."""
NOT_FORWARDED = (
    *("CUDA_VISIBLE_DEVICES", "*_SOCKET_IFNAME", "TORCHELASTIC_*"),
    *("SHOAL_SECRET", "SHOAL_SCRATCH", "SHOAL_USUAL_TMPDIR", "SHOAL_AGENT_LINE", "SHOAL_PLACE"),
)
"""Exceptions: what is true of one machine, or of one process, only."""
OF_RANK_0 = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
"""What only the machine of rank 0 gets, which writes the run."""
CONNECT_S = 15
"""How long a machine may take to answer [s]."""
_ALIVE_S = 5
_LAST_WORD_S = 5.0

_NO_DIRECTORY, _NO_PYTHON, _OWN_TROUBLE = 91, (126, 127), 255
"""What ssh ends with: chosen here, what shells choose, and ssh's own."""
_BOOTSTRAP = f"""
import json, os, sys
def take(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more: sys.exit(1)
        data += more
    return data
told = json.loads(take(int(take(8))))
try:
    os.chdir(told["cwd"])
except OSError as error:
    sys.exit(sys.stderr.write(f"{{error.strerror}}") and {_NO_DIRECTORY})
os.environ.update(told["environ"])
os.execv(sys.executable, [sys.executable, *{PYTHON[1:]}, "-u", "-m", "shoal.launch.node_agent"])
"""
"""What runs there first. It needs the standard library alone, and makes the surroundings in which Shoal is found."""
_ONE_WORD = f"exec(bytes.fromhex({_BOOTSTRAP.encode().hex()!r}))"
"""The same, without a line's end or a letter that means something to a login shell, whichever it is."""


class SshConnection:
    """A warden on another machine, and the line to it."""

    def __init__(
        self,
        host: str,
        ssh_config: str | None,
        on_message: Callable[[Message | None], None],
        *,
        writes_run: bool = False,
    ) -> None:
        """Start to connect. Whatever goes wrong ends the line.

        Args:
            host: The machine, as ssh knows it.
            ssh_config: A configuration file instead of the user's own.
            on_message: See `Channel`.
            writes_run: Whether rank 0 will run there.
        """
        self.host = host
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  As long as this object.
        (to_read, orders), (answers, to_write) = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            [
                *("ssh", "-T", "-a", "-x", *(("-F", ssh_config) if ssh_config else ())),
                *(word for option in _options() for word in ("-o", option)),
                *("--", host, f"exec {shlex.join([sys.executable, '-I', '-S', '-c', _ONE_WORD])}"),
            ],
            stdin=to_read,
            stdout=to_write,
            stderr=self._complaints,
            env={name: value for name, value in os.environ.items() if name != "LC_ALL"} | {"LC_MESSAGES": "C"},
            start_new_session=True,  # A terminal's Ctrl-C is for the launching process alone.
        )
        os.close(to_read)
        os.close(to_write)
        header = json.dumps({"cwd": str(Path.cwd()), "environ": forwarded(os.environ, writes_run=writes_run)}).encode()
        self.line = Channel(answers, orders, on_message, begins_with=b"%08d" % len(header) + header)

    def error(self) -> ShoalError:
        """Wait until ssh has ended, which the end of the line has announced, and return what it means."""
        code, said = self._end()
        return what_ssh_means(self.host, code, said)

    def how_it_ended(self) -> str:
        """The same in few words, for a connection that stood before."""
        code, said = self._end()
        last = _last_line(said)
        if last:
            return f"its connection ended ({last})"
        return f"its connection ended ({how_it_ended(code)})" if code else "its connection ended"

    def close(self, patience: float = 0.0) -> None:
        """Say what is still to be said, and end the connection."""
        if patience:
            self.line.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _end(self) -> tuple[int | None, str]:
        try:
            code = self._process.wait(_LAST_WORD_S)
        except subprocess.TimeoutExpired:
            code = None
        self._complaints.seek(0)
        return code, self._complaints.read().decode(errors="replace").strip()


def _options() -> tuple[str, ...]:
    return (
        "BatchMode=yes",  # Nobody is there to type a password, or to accept a host key.
        f"ConnectTimeout={CONNECT_S}",
        f"ServerAliveInterval={_ALIVE_S}",
        "ServerAliveCountMax=6",
        "ClearAllForwardings=yes",
        "ControlMaster=no",
        "RequestTTY=no",
    )


def forwarded(environ: Mapping[str, str], *, writes_run: bool = False) -> dict[str, str]:
    """Return the variables that another machine gets, where rank 0 will run there or not."""
    kept = NOT_FORWARDED if writes_run else NOT_FORWARDED + OF_RANK_0
    return {name: value for name, value in environ.items() if _matches(name, FORWARDED) and not _matches(name, kept)}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def refuse_without_ssh(ssh_config: str | None) -> None:
    """Refuse to begin where `ssh`, or its configuration, is missing.

    Raises:
        UsageError: It is.
    """
    if shutil.which("ssh") is None:
        message = "--hosts was passed, but there is no ssh here: install OpenSSH's client."
        raise UsageError(message)
    if ssh_config is not None and not Path(ssh_config).is_file():
        message = f"--ssh-config is {ssh_config}, which is no file: pass ssh's configuration, or leave it out."
        raise UsageError(message)


def what_ssh_means(host: str, code: int | None, said: str) -> ShoalError:
    """Return the error that a connection ended with before anything was said over it."""
    last = _last_line(said)
    quoted = last or "nothing was said"
    if code == _NO_DIRECTORY:
        return UsageError(
            f"Host {host} has no directory {Path.cwd()} ({quoted}): have the project at the same path on all machines."
        )
    if code in _NO_PYTHON:
        return UsageError(
            f"Host {host} has no Python at {sys.executable} ({quoted}): install the project's environment at the same "
            "path on all machines."
        )
    if "No module named 'shoal" in said or "No module named shoal" in said:
        return UsageError(f"Host {host} has no Shoal in {sys.executable} ({quoted}): install it there, too.")
    for marks, meaning in _MEANINGS:
        if any(mark in said for mark in marks):
            return meaning(host, quoted)
    if code == _OWN_TROUBLE:
        return WorkerLostError(
            f"Host {host} cannot be reached by ssh ({quoted}): see that it is up, and try again.", host=host
        )
    how = "it does not end" if code is None else how_it_ended(code)
    return WorkerLostError(
        f"Host {host} ended the connection before it had said anything ({how}: {quoted}): try `ssh {host} true`.",
        details=said,
        host=host,
    )


def _changed(host: str, _said: str) -> ShoalError:
    return UsageError(
        f"Host {host} has another host key than the one that is known, so it may not be that machine: if it was "
        f"installed anew, run `ssh-keygen -R {host}`, and `ssh {host}` once to accept the new key."
    )


def _unknown_key(host: str, said: str) -> ShoalError:
    return UsageError(
        f"Host {host} has a host key that is not known here ({said}): run `ssh {host}` once to accept it."
    )


def _unknown_name(host: str, said: str) -> ShoalError:
    return UsageError(
        f"Host {host} is not known to ssh ({said}): pass a name that resolves, an address, or one that ssh's "
        "configuration tells about."
    )


def _refused(host: str, said: str) -> ShoalError:
    return UsageError(
        f"Host {host} refused the login ({said}): let `ssh {host} true` work without a password, by a key in "
        "~/.ssh/authorized_keys there."
    )


def _bad_config(host: str, said: str) -> ShoalError:
    return UsageError(f"ssh does not take its configuration, asked for host {host} ({said}): mend it.")


_MEANINGS = (
    (("REMOTE HOST IDENTIFICATION HAS CHANGED",), _changed),
    (("Host key verification failed", "host key is known for"), _unknown_key),
    (("Could not resolve hostname",), _unknown_name),
    (("Permission denied (", "Too many authentication failures", "No supported authentication"), _refused),
    (
        ("Bad configuration option", "terminating, ", "Can't open user config file", "Bad owner or permissions"),
        _bad_config,
    ),
)


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""
