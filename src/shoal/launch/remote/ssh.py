"""The connection to another node by the system's own `ssh`, and the meaning of its messages.

`ssh` verifies host keys, and knows the user's configuration, keys, agents and jump hosts. The node agent gets its
directory, environment and requests over standard input, since all users can read a command line.
"""

import contextlib
import fnmatch
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal import PYTHON
from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.launch.remote.channel import Channel
from shoal.procfs import how_it_ended
from shoal.timing import EXIT_STATUS_S, SSH_ALIVE_COUNT, SSH_ALIVE_S, SSH_CONNECT_S

FORWARDED = (
    *("PATH", "LD_LIBRARY*", "LIBRARY_PATH", "PYTHON*", "CUDA*", "TORCH*", "PYTORCH*", "NCCL*"),  # As torchrunx does.
    *("GLOO*", "OMP*", "MKL*", "GLIBC_TUNABLES", "MUJOCO*", "WARP*", "WANDB*", "SHOAL*"),
)
"""Patterns of environment variables that other nodes get."""
NOT_FORWARDED = ("CUDA_VISIBLE_DEVICES", "*_SOCKET_IFNAME", "TORCHELASTIC_*", "SHOAL_SECRET", "SHOAL_SCRATCH")
"""Exceptions, which hold for one machine or one process only."""
OF_RANK_0 = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
"""Variables that only the node of rank 0 gets, which writes the run."""
_NO_DIRECTORY, _NO_PYTHON, _SSH_FAILED = 91, (126, 127), 255
"""ssh's exit codes: one of the bootstrap, those of shells, and ssh's own."""
_BOOTSTRAP = f"""
import json, os, sys
from multiprocessing.connection import Connection
channel = Connection(0, writable=False)
first = b""
while not first:
    first = channel.recv_bytes()
first = json.loads(first)
try:
    os.chdir(first["cwd"])
except OSError as error:
    sys.exit(sys.stderr.write(f"{{error.strerror}}") and {_NO_DIRECTORY})
os.environ.update(first["environ"])
os.execv(sys.executable, [sys.executable, *{PYTHON[1:]}, "-u", "-m", "shoal.launch.remote.node_agent"])
"""
"""The first program there. It needs the standard library alone, and sets the directory and the environment of Shoal, by
the channel's first message."""
_ONE_WORD = f"exec(bytes.fromhex({_BOOTSTRAP.encode().hex()!r}))"
"""The same without newlines or characters that any login shell interprets."""

_OPTIONS = (
    "BatchMode=yes",  # No password can be typed, and no host key accepted.
    f"ConnectTimeout={SSH_CONNECT_S}",
    f"ServerAliveInterval={SSH_ALIVE_S}",
    f"ServerAliveCountMax={SSH_ALIVE_COUNT}",
    "ClearAllForwardings=yes",
    "ControlMaster=no",
    "RequestTTY=no",
)


class SshConnection:
    """A node agent on another node, and the channel to it."""

    def __init__(self, host: str, ssh_config: str | None, *, writes_run: bool = False) -> None:
        """Begin to connect to a machine that ssh knows, on which rank 0 `writes_run`. Failures end the channel."""
        self.host = host
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  As long as this object.
        (stdin, to_agent), (from_agent, stdout) = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            [
                *("ssh", "-T", "-a", "-x", *(("-F", ssh_config) if ssh_config else ())),
                *(word for option in _OPTIONS for word in ("-o", option)),
                *("--", host, f"exec {shlex.join([sys.executable, '-I', '-S', '-c', _ONE_WORD])}"),
            ],
            stdin=stdin,
            stdout=stdout,
            stderr=self._stderr,
            env={name: value for name, value in os.environ.items() if name != "LC_ALL"} | {"LC_MESSAGES": "C"},
            start_new_session=True,  # A terminal's Ctrl-C is for the launching process alone.
        )
        os.close(stdin)
        os.close(stdout)
        self.channel = Channel(from_agent, to_agent)
        environ = forwarded(os.environ, writes_run=writes_run)
        self.channel.send("environment", {"cwd": str(Path.cwd()), "environ": environ})

    def error(self) -> ShoalError:
        """Return the error of a connection that has ended before an answer."""
        if not self.channel.has_greeted:
            return connection_error(self.host, *self._end())
        return WorkerLostError(f"Node {self.host} was lost while it was asked ({self.how_it_ended()}): try again.")

    def how_it_ended(self) -> str:
        """Return how a connection ended that stood before."""
        code, output = self._end()
        why = _last_line(output) or (how_it_ended(code) if code else "")
        return f"its connection ended ({why})" if why else "its connection ended"

    def close(self, patience: float = 0.0) -> None:
        """End the connection; with patience [s], flush the channel before."""
        if patience:
            self.channel.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self._process.kill()
        self._process.wait()

    def _end(self) -> tuple[int | None, str]:
        """Wait for ssh; return its exit code, None if it does not end, and its messages."""
        try:
            code = self._process.wait(EXIT_STATUS_S)
        except subprocess.TimeoutExpired:
            code = None
        self._stderr.seek(0)
        return code, self._stderr.read().decode(errors="replace").strip()


def forwarded(environ: Mapping[str, str], *, writes_run: bool = False) -> dict[str, str]:
    """Return the environment variables for a node, with those of rank 0 if it writes the run."""
    left_out = NOT_FORWARDED if writes_run else NOT_FORWARDED + OF_RANK_0

    def matching(patterns: Sequence[str]) -> set[str]:
        return {name for pattern in patterns for name in fnmatch.filter(environ, pattern)}

    return {name: environ[name] for name in matching(FORWARDED) - matching(left_out)}


def refuse_without_ssh(ssh_config: str | None) -> None:
    """Raise UsageError where `ssh` or its configuration is missing."""
    if shutil.which("ssh") is None:
        raise UsageError("--hosts was passed, but there is no ssh here: install OpenSSH's client.")
    if ssh_config is not None and not Path(ssh_config).is_file():
        raise UsageError(f"--ssh-config is {ssh_config}, which is no file: pass ssh's configuration, or leave it out.")


def connection_error(host: str, code: int | None, output: str) -> ShoalError:
    """Return the error of a connection that ended before any message, from ssh's exit code and its messages."""
    quoted = _last_line(output) or "nothing was said"

    def has(*parts: str) -> bool:
        return any(part in output for part in parts)

    if code == _NO_DIRECTORY:
        message = f"Node {host} has no directory {Path.cwd()} ({quoted}): have the project at the same path everywhere."
    elif code in _NO_PYTHON:
        message = (
            f"Node {host} has no Python at {sys.executable} ({quoted}): install this environment there, at that path."
        )
    elif has("No module named 'shoal", "No module named shoal"):
        message = f"Node {host} has no Shoal in {sys.executable} ({quoted}): install it there, too."
    elif has("REMOTE HOST IDENTIFICATION HAS CHANGED"):
        message = (
            f"Node {host} has another host key than the one that is known, so it may not be that machine: if it was "
            f"reinstalled, run `ssh-keygen -R {host}`, and `ssh {host}` once to accept the new key."
        )
    elif has("Host key verification failed", "host key is known for"):
        message = f"Node {host} has a host key that is not known here ({quoted}): run `ssh {host}` once to accept it."
    elif has("Could not resolve hostname"):
        message = (
            f"Node {host} is not known to ssh ({quoted}): pass an address, or a name that DNS or ssh's files know."
        )
    elif has("Permission denied (", "Too many authentication failures", "No supported authentication"):
        message = (
            f"Node {host} refused the login ({quoted}): let `ssh {host} true` work without a password, by a key in "
            "~/.ssh/authorized_keys there."
        )
    elif has("Bad configuration option", "terminating, ", "Can't open user config file", "Bad owner or permissions"):
        message = f"ssh does not take its configuration, asked for node {host} ({quoted}): mend it."
    else:
        return _loss(host, code, output, quoted)
    return UsageError(message)


def _loss(host: str, code: int | None, output: str, quoted: str) -> WorkerLostError:
    """Return the error of a connection that may stand at the next attempt."""
    if code == _SSH_FAILED:
        return WorkerLostError(f"Node {host} cannot be reached by ssh ({quoted}): see that it is up, and try again.")
    how = "it does not end" if code is None else how_it_ended(code)
    message = f"Node {host} ended the connection before it had said anything ({how}: {quoted}): try `ssh {host} true`."
    return WorkerLostError(message, details=output)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""
