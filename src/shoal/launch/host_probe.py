"""What is found out about the machines of `--hosts` before anything is planned: all of them at once, over ssh.

Every trouble with a machine that can be seen before training starts is told here, with what to do about it.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.launch.ssh import SshConnection, refuse_without_ssh
from shoal.machine.host import nearest_existing
from shoal.machine.network import Route
from shoal.plan.environment_parity import code_of, fingerprint, refuse_differences
from shoal.plan.nodes import NodeFacts, NodePlan, Nodes, meeting_addresses, plan_devices
from shoal.plan.slurm import allocated_hosts
from shoal.plan.training import asked_gpus, refuse_unwritable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.config import TrainConfig
    from shoal.launch.channel import Message

ANSWER_S = 60.0
"""How long a machine may take for one answer [s], the login included."""
_POLL_S = 0.1


def hosts_of(config: TrainConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the machines that `--hosts` means."""
    return allocated_hosts(environ) if config.hosts == ("slurm",) else config.hosts


def probe_hosts(
    environ: Mapping[str, str],
    config: TrainConfig,
    on_missing: Callable[[ShoalError], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Nodes:
    """Look at all machines of `config`, and decide what each does.

    Args:
        environ: Environment variables.
        config: What was asked.
        on_missing: Called for each machine that cannot be reached and is left out. By default none is left out.
        check: Called now and then; raises when nobody wants to know any more.

    Raises:
        UsageError: A machine cannot do it, or is not like the others.
        WorkerLostError: One cannot be reached.
    """
    hosts = hosts_of(config, environ)
    refuse_without_ssh(config.ssh_config)
    log_root = Path(config.log_root)
    refuse_unwritable("--log-root", log_root)
    with ExitStack() as stack:
        scouts = [stack.enter_context(_scouting(host, config.ssh_config, check)) for host in hosts]
        token = stack.enter_context(_token(log_root))
        facts, missing = _gather(scouts, config, token)
        for error in missing.values():
            if on_missing is None or not facts:
                raise _first_trouble(missing)
            on_missing(error)
        refuse_differences(
            fingerprint(socket.gethostname(), *code_of(config.task)), [each.fingerprint for each in facts]
        )
        devices, backend, notes = plan_devices(asked_gpus(config), config.nproc_per_node, facts)
        if not facts[0].shares_runs:
            message = (
                f"Host {facts[0].host} has rank 0, which writes the run, but does not see {log_root.absolute()}: pass "
                "--log-root with a directory that it shares with this machine, or start training there."
            )
            raise UsageError(message)
        scouts = [scout for scout in scouts if scout.host not in missing]
        meeting, networks = _meet(scouts, facts, config.interface)
    machines = tuple(
        NodePlan(
            host=each.host,
            name=each.name,
            devices=own,
            uuids=each.gpus.uuids(own),
            network=network,
            shares_runs=each.shares_runs,
        )
        for each, own, network in zip(facts, devices, networks, strict=True)
    )
    return Nodes(machines=machines, meeting=meeting, backend=backend, notes=tuple(notes))


class _HostProbe:
    """A warden that is only asked."""

    def __init__(self, host: str, ssh_config: str | None, check: Callable[[], None]) -> None:
        self.host = host
        self._check = check
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._login = SshConnection(host, ssh_config, self._inbox.put)
        self._answered = False

    def ask(self, kind: str, told: Mapping[str, Any]) -> None:
        self._login.line.say(kind, told)

    def answer(self, deadline: float) -> dict[str, Any]:
        """Return the answer.

        Raises:
            ShoalError: There is none.
        """
        told = self._next(deadline)
        if told is None:
            if self._answered:
                message = f"Host {self.host} was lost while it was asked ({self._login.how_it_ended()}): try again."
                raise WorkerLostError(message, host=self.host)
            raise self._login.error()
        self._answered = True
        return told.told

    def _next(self, deadline: float) -> Message | None:
        """Return what the machine says next; None when it has ended."""
        while True:
            self._check()
            with contextlib.suppress(queue.Empty):
                return self._inbox.get(timeout=_POLL_S)
            if time.monotonic() > deadline:
                message = (
                    f"Host {self.host} was too slow: no answer within {ANSWER_S:.0f} s. See how it is, and try again."
                )
                raise WorkerLostError(message, host=self.host)

    def close(self) -> None:
        self._login.close()


@contextmanager
def _scouting(host: str, ssh_config: str | None, check: Callable[[], None]) -> Iterator[_HostProbe]:
    scout = _HostProbe(host, ssh_config, check)
    try:
        yield scout
    finally:
        scout.close()


@contextmanager
def _token(log_root: Path) -> Iterator[Path]:
    """Leave a file where runs are made, for as long as the machines look whether they see it."""
    token = nearest_existing(log_root).absolute() / f".shoal-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):  # Where runs cannot be made, something else says so.
        token.touch()
    try:
        yield token
    finally:
        with contextlib.suppress(OSError):
            token.unlink(missing_ok=True)


def _gather(
    scouts: Sequence[_HostProbe], config: TrainConfig, token: Path
) -> tuple[list[NodeFacts], dict[str, ShoalError]]:
    """Ask all machines at once, and return what they say, and why others say nothing."""
    packages, files = code_of(config.task)
    begun, deadline = time.time(), time.monotonic() + ANSWER_S
    for scout in scouts:
        scout.ask("facts", {"token": str(token), "packages": packages, "files": files})
    facts: list[NodeFacts] = []
    missing: dict[str, ShoalError] = {}
    for scout in scouts:
        try:
            told = scout.answer(deadline)
        except ShoalError as error:
            missing[scout.host] = error
            continue
        # The other clock was read somewhere between the question and now.
        ahead = told["time"] - time.time() if told["time"] > time.time() else min(0.0, told["time"] - begun)
        facts.append(NodeFacts.from_plain(scout.host, told, ahead=ahead))
    return facts, missing


def _first_trouble(missing: Mapping[str, ShoalError]) -> ShoalError:
    """Return one error that tells all: what the user has to mend comes before what may mend itself."""
    first = next((error for error in missing.values() if isinstance(error, UsageError)), next(iter(missing.values())))
    first.details = "\n".join(
        [first.details, *(str(error) for error in missing.values() if error is not first)]
    ).strip()
    return first


def _meet(
    scouts: Sequence[_HostProbe], facts: Sequence[NodeFacts], interface: str | None
) -> tuple[str | None, list[Mapping[str, str]]]:
    """Find an address of the first machine that all others can connect to, and everybody's interface on that way.

    Raises:
        UsageError: There is none.
    """
    if len(facts) == 1:
        return None, [{}]
    candidates = meeting_addresses(facts[0], interface)
    first, *others = scouts
    first.ask("listen", {"addresses": candidates})
    ports = first.answer(time.monotonic() + ANSWER_S)["ports"]
    for scout in others:
        scout.ask("reach", {"places": ports, "interface": interface})
    found = [scout.answer(time.monotonic() + ANSWER_S)["routes"] for scout in others]
    address = next((each for each in candidates if all(each in routes for routes in found)), None)
    if address is None:
        cut = [scout.host for scout, routes in zip(others, found, strict=True) if not routes] or [
            scout.host for scout in others
        ]
        via = f" through {interface}" if interface else ""
        message = (
            f"Host {', '.join(cut)} cannot connect to host {facts[0].host}{via}, where the workers meet (tried "
            f"{', '.join(candidates) or 'no address'}): open the way between them in their firewalls, or pass another "
            "--interface."
        )
        raise UsageError(message)
    own = next(name for name, each in facts[0].addresses.items() if address in each)
    routes = [Route(address, address, own), *(Route(address, *routes[address]) for routes in found)]
    return address, [route.environment() for route in routes]
