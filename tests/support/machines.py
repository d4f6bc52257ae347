"""Several nodes on one, on one switch.

Each has its own network card, addresses, name, processes, `/tmp`, home, clock since boot and SSH server. They are made
of namespaces (`namespaces.py`, `network.py`), so what runs on them is real, and so are cables that are pulled and power
that fails. They share the disk where it is not `/tmp` or the home, the kernel's boot id, and the clock of the wall, for
which Linux has no namespace. This system's own network is not touched, and nothing is left when the test ends or is
killed.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import login
from support.commands import LAUNCH_TIMEOUT_S, SURROUNDINGS, Running, kill, left_in, outliving
from support.namespaces import Namespaces, NoNamespacesError
from support.network import AddressBook, Switch, run_ip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Literal

LAUNCHER = "launcher"
"""The machine at which the user sits. It is no worker."""

_REPOSITORY = Path(__file__).parents[2]
_HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)
_TOOLS = ("ip", "unshare", "nsenter", "setsid", "mount", "hostname", "ssh", "ssh-keygen", login.SERVER)
_PRIVATE = {Path("/tmp"): "tmp", _HOME: "home", Path("/etc/ssh"): "ssh"}  # noqa: S108
_FILES = {Path("/etc/hosts"): "hosts", Path("/etc/resolv.conf"): "resolv.conf"}
_MODES = {"tmp": 0o1777, "home": 0o700, "ssh": 0o755}
_NOT_HANDED_ON = ("TMPDIR", "TEMP", "TMP", "SSH_AUTH_SOCK")
_UP_FOR_S = 100_000
"""How much longer each node seems to have been up than the one before [s]."""


@dataclass
class RunningThere(Running):
    """A command that runs on a machine, and is judged by what it leaves there."""

    machine: Machine = field(kw_only=True)
    number: int = field(kw_only=True)

    @property
    def leader(self) -> int:
        """The command's own process. `process` waits for it outside, and ends as it does."""
        return self.number

    def processes(self) -> list[int]:
        """Return all living processes of the machine."""
        return self.machine.processes()

    def left_files(self) -> list[str]:
        """Return the names of what is in the machine's temporary directories."""
        return self.machine.left_files()


class Machine:
    """One machine. Its processes are known by their numbers outside, as `os.kill` takes them."""

    home = _HOME
    """The user's home, as the machine sees it. Each machine has its own."""

    def __init__(self, name: str, book: AddressBook, switch: Switch, base: Path, kept: Sequence[Path]) -> None:
        """Begin to start a machine; `connect` finishes that.

        Args:
            name: Its name, which is in the address book.
            book: All names and addresses.
            switch: Where its cable leads.
            base: Where its own directories are, outside.
            kept: Paths that are the same here as outside.
        """
        self.name = name
        self.address = book.address(name, 4)
        self.address6 = book.address(name, 6)
        self.base = base
        self._number = book.names.index(name) + 1
        self._book, self._switch, self._kept = book, switch, kept
        self._server: RunningThere | None = None
        for directory, mode in _MODES.items():
            (base / directory).mkdir(parents=True)
            (base / directory).chmod(mode)
        (base / "hosts").write_text(book.hosts(name), encoding="utf-8")
        (base / "resolv.conf").touch()
        self._spaces = self._begin()
        self._found = {path.name for path in (base / "tmp").iterdir()}

    def run(
        self,
        words: Sequence[str],
        where: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
        timeout: float = LAUNCH_TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run any command to its end, in directory `where` of the machine."""
        running = self.start_plain(words, where, environ)
        try:
            stdout, stderr = running.process.communicate(timeout=timeout)
        except BaseException:
            kill([running.leader])
            raise
        return subprocess.CompletedProcess([*words], running.process.returncode, stdout, stderr)

    def start(self, words: Sequence[str], where: Path, environ: Mapping[str, str] | None = None) -> RunningThere:
        """Start a command with `where/logs` for `--log-root`, as `commands.start` does.

        Args:
            words: The command.
            where: Its working directory, made where it is missing: what the machines share, or what is below the
                machine's own home or `/tmp`.
            environ: Variables of its own.
        """
        self.outside(where).mkdir(parents=True, exist_ok=True)
        return self.start_plain([*words, "--log-root", str(where / "logs")], where, environ)

    def start_plain(
        self, words: Sequence[str], where: Path = Path("/"), environ: Mapping[str, str] | None = None
    ) -> RunningThere:
        """Start any command, in directory `where` of the machine."""
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
        surroundings = {**inherited, **SURROUNDINGS, "HOME": str(_HOME), **(environ or {})}
        process, number = self._spaces.start(words, str(where), surroundings)
        return RunningThere(
            process=process,
            mark=uuid.uuid4().hex,
            log_root=self.outside(where / "logs"),
            temporary=self.base / "tmp",
            machine=self,
            number=number,
        )

    def outside(self, path: Path) -> Path:
        """Return where a path of the machine is outside, for the test to read and write."""
        if not any(path.is_relative_to(same) for same in self._kept):
            for place, stand_in in _PRIVATE.items():
                if path.is_relative_to(place):
                    return self.base / stand_in / path.relative_to(place)
        return path

    def processes(self) -> list[int]:
        """Return all living processes but its first one and its SSH server. Sessions of the server are among them."""
        server = self._server.leader if self._server is not None else None
        return [pid for pid in self._spaces.processes() if pid != server]

    def left_processes(self) -> list[str]:
        """Return the command lines of its processes, which get a moment to go."""
        return outliving(self.processes)

    def left_files(self) -> list[str]:
        """Return the names of what is in `/tmp` and `/dev/shm`."""
        in_memory = sorted(path.name for path in (self._spaces.root / "dev/shm").glob("*"))
        return [name for name in left_in(self.base / "tmp") if name not in self._found] + in_memory

    def end_all(self) -> None:
        """Kill all its processes but its first one and its SSH server."""
        kill(self.processes())

    def cut(self) -> None:
        """Pull its cable."""
        self._switch.cut(self._number)

    def mend(self) -> None:
        """Plug its cable in again."""
        self._switch.mend(self._number)

    def delay(self, ms: float, loss: float = 0.0) -> None:
        """Let frames to and from it take longer by so much each [ms], and lose a part of them. Zero undoes it."""
        if ms or loss:
            self._switch.slow_down(self._number, ms / 1000, loss)
        else:
            self._switch.speed_up(self._number)

    def power_off(self) -> None:
        """Take its power away: nobody hears from it any more, and nothing runs on it. Its disk stays."""
        self._switch.unplug(self._number)  # First, or else the kernel would close its connections, and tell its peers.
        self._spaces.end()

    def power_on(self) -> None:
        """Start it again."""
        self._spaces = self._begin()
        self.connect()
        if self._server is not None:
            self.serve_logins()

    def connect(self) -> None:
        """Wait until it has started, and plug it into the switch."""
        self._spaces.wait()
        self._switch.plug(self._number, self._spaces.first)
        run_ip(self._book.setting_up(self.name), self._spaces.first)

    def serve_logins(self) -> None:
        """Start its SSH server, with the host key that it has."""
        (self.base / "ssh" / login.LOG).unlink(missing_ok=True)
        self._server = self.start_plain(login.server_words())
        login.wait_for_server(self._server.process, self.base / "ssh")

    def stop_server(self) -> None:
        """Have its SSH server stand still: the kernel goes on to accept connections for it."""
        if self._server is not None:
            os.kill(self._server.leader, signal.SIGSTOP)

    def change_host_key(self) -> str:
        """Have its SSH server use another host key, as after a new installation. Return its public half."""
        key = login.write_host_key(self.base / "ssh")
        if self._server is not None:  # Some releases read the key for each connection, others once.
            kill([self._server.leader])
            self._server.process.wait()  # Only then is its port free.
            self.serve_logins()
        return key

    def admit(self, public_key: str) -> None:
        """Let the owner of a key log in. With an empty one nobody can."""
        login.authorise(self.base / "home", public_key)

    def end(self) -> None:
        """End it, with all that runs there."""
        self._spaces.end()

    def _begin(self) -> Namespaces:
        up_for_s = self._number * _UP_FOR_S
        return Namespaces(self.name, self.base, private=_PRIVATE, files=_FILES, kept=self._kept, up_for_s=up_for_s)


@dataclass(frozen=True)
class Machines:
    """All nodes of a test."""

    launcher: Machine
    workers: tuple[Machine, ...]
    shared: Path
    """A directory that all of them, and the test, see under the same path, like one of a network file system."""

    @property
    def all(self) -> tuple[Machine, ...]:
        """The launcher and the workers."""
        return (self.launcher, *self.workers)

    @property
    def ssh_config(self) -> Path:
        """The configuration of SSH on the launcher, which `ssh` there reads by itself."""
        return _HOME / ".ssh/config"

    def __getitem__(self, name: str) -> Machine:
        (machine,) = (machine for machine in self.all if machine.name == name)
        return machine

    def left_processes(self) -> list[str]:
        """Return the command lines of all processes on any machine, each after the machine's name."""
        return [f"{machine.name}: {line}" for machine in self.all for line in machine.left_processes()]

    def left_files(self) -> list[str]:
        """Return the names of what is in temporary directories of any machine, each after the machine's name."""
        return [f"{machine.name}: {name}" for machine in self.all for name in machine.left_files()]


@contextmanager
def machines(
    where: Path,
    *names: str,
    versions: Sequence[Literal[4, 6]] = (4, 6),
    debian: bool = False,
    logins: bool = True,
    kept: Sequence[Path] = (),
) -> Iterator[Machines]:
    """Make a launcher and machines of these names, and take them away at the end with all that runs there.

    Args:
        where: An empty directory for their disks.
        names: Their names.
        versions: Versions of the internet protocol that they have addresses of.
        debian: Whether each takes its own name for 127.0.1.1.
        logins: Whether the launcher may log in to each by SSH and knows its host key.
        kept: More paths that are the same on each node as outside. The repository, Python and `~/.cache` always are.
    """
    book = AddressBook((LAUNCHER, *names), versions, debian)
    shared = where / "shared"
    shared.mkdir(parents=True)
    python = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1])
    cache = (Path(os.environ["WARP_CACHE_PATH"]),) if "WARP_CACHE_PATH" in os.environ else ()
    for path in cache:
        path.mkdir(parents=True, exist_ok=True)
    same = (shared, _REPOSITORY, *python, _HOME / ".cache", *cache, *kept)
    with ExitStack() as stack:
        switch = Switch()
        stack.callback(switch.end)
        launcher, *workers = all_machines = [Machine(name, book, switch, where / name, same) for name in book.names]
        for machine in all_machines:
            stack.callback(machine.end)
        for machine in all_machines:
            machine.connect()
        if logins:
            _let_log_in(launcher, workers, book)
        yield Machines(launcher, tuple(workers), shared)


def _let_log_in(launcher: Machine, workers: Sequence[Machine], book: AddressBook) -> None:
    home = launcher.base / "home"
    user_key = login.write_user_key(home)
    host_keys = {(worker.name, *book.addresses(worker.name)): worker.change_host_key() for worker in workers}
    login.write_client_files(home, host_keys)
    for worker in workers:
        worker.admit(user_key)
        worker.serve_logins()


@functools.cache
def why_no_machines() -> str | None:
    """Return why machines cannot be made here, or None where one was."""
    if os.geteuid() != 0:
        return "machines are made of namespaces, for which one has to be root"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"machines need {', '.join(missing)}: install iproute2, util-linux, hostname, openssh-server"
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with machines(Path(scratch), "probe", logins=False):
                return None
        except NoNamespacesError as error:
            return f"this system makes no machines: {error}"


needs_machines = pytest.mark.skipif(why_no_machines() is not None, reason=why_no_machines() or "")
"""Skips tests where machines cannot be made. To know that, a small one is made."""
