"""The host probe: facts about the nodes of `--hosts`, all requested at once over ssh, and the plan of each node.

Everything that keeps a node from training is reported here, before any training starts, with its remedy.
"""

import contextlib
import queue
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from shoal.config import TrainConfig
from shoal.config.plain import from_plain
from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.launch.channel import Message
from shoal.launch.ssh import SshConnection, refuse_without_ssh
from shoal.machine.host import nearest_existing
from shoal.machine.network import Route
from shoal.plan.environment_parity import code_of, fingerprint, refuse_differences
from shoal.plan.nodes import NodeFacts, NodePlan, Nodes, plan_devices, rendezvous_candidates
from shoal.plan.slurm import allocated_hosts
from shoal.plan.training import refuse_unwritable, requested_gpus
from shoal.timing import ANSWER_S, POLL_S


def hosts_of(config: TrainConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that `--hosts` names."""
    return allocated_hosts(environ) if config.hosts == ("slurm",) else config.hosts


def probe_hosts(
    environ: Mapping[str, str],
    config: TrainConfig,
    on_missing: Callable[[ShoalError], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Nodes:
    """Probe all hosts of a configuration, and plan the workers of each.

    Args:
        environ: Environment variables.
        config: The configuration.
        on_missing: Called for each host that is unreachable and left out. By default none is left out.
        check: Cancellation hook, polled; raises to abort.

    Raises:
        UsageError: A host cannot train, or differs from the others.
        WorkerLostError: One is unreachable.
    """
    hosts = hosts_of(config, environ)
    refuse_without_ssh(config.ssh_config)
    log_root = Path(config.log_root)
    refuse_unwritable("--log-root", log_root)
    with ExitStack() as stack:
        probes = [_HostProbe(host, config.ssh_config, check, stack) for host in hosts]
        token = stack.enter_context(_token(log_root))
        facts, missing = _gather(probes, config, token)
        for error in missing.values():
            if on_missing is None or not facts:
                raise _combined(missing)
            on_missing(error)
        own = fingerprint(socket.gethostname(), *code_of(config.task))
        refuse_differences(own, [each.fingerprint for each in facts])
        planned, notes = plan_devices(requested_gpus(config), config.nproc_per_node, facts)
        if not facts[0].shares_runs:
            raise UsageError(
                f"Host {facts[0].host} has rank 0, which writes the run, but does not see {log_root.absolute()}: pass "
                "--log-root with a directory that it shares with this machine, or start training there."
            )
        present = [probe for probe in probes if probe.host not in missing]
        rendezvous, networks = _find_rendezvous(present, facts, config.interface)
    nodes = tuple(
        NodePlan.of(workers, each.gpus, host=each.host, network=network, shares_runs=each.shares_runs)
        for each, workers, network in zip(facts, planned, networks, strict=True)
    )
    return Nodes(nodes=nodes, rendezvous=rendezvous, notes=tuple(notes))


class _HostProbe:
    """A connection to a node agent that only answers requests."""

    def __init__(self, host: str, ssh_config: str | None, check: Callable[[], None], stack: ExitStack) -> None:
        self.host = host
        self._check = check
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._connection = SshConnection(host, ssh_config, self._inbox.put)
        self._has_answered = False
        stack.callback(self._connection.close)

    def request(self, kind: str, data: Mapping[str, Any]) -> None:
        self._connection.channel.send(kind, data)

    def answer(self, deadline: float | None = None) -> dict[str, Any]:
        """Return the answer to the last request.

        Raises:
            ShoalError: There is none.
        """
        deadline = deadline or time.monotonic() + ANSWER_S
        while True:
            self._check()
            with contextlib.suppress(queue.Empty):
                answer = self._inbox.get(timeout=POLL_S)
                break
            if time.monotonic() > deadline:
                message = (
                    f"Host {self.host} was too slow: no answer within {ANSWER_S:.0f} s. See how it is, and try again."
                )
                raise WorkerLostError(message, host=self.host)
        if answer is None and self._has_answered:
            message = f"Host {self.host} was lost while it was asked ({self._connection.how_it_ended()}): try again."
            raise WorkerLostError(message, host=self.host)
        if answer is None:
            raise self._connection.error()
        self._has_answered = True
        return answer


@contextmanager
def _token(log_root: Path) -> Iterator[Path]:
    """Keep a file where runs are made, by which nodes find out whether they share that directory."""
    token = nearest_existing(log_root).absolute() / f".shoal-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):  # Another check reports a directory that cannot be written.
        token.touch()
    try:
        yield token
    finally:
        with contextlib.suppress(OSError):
            token.unlink(missing_ok=True)


def _gather(
    probes: Sequence[_HostProbe], config: TrainConfig, token: Path
) -> tuple[list[NodeFacts], dict[str, ShoalError]]:
    """Request facts from all hosts at once; return them, and an error for each host without an answer."""
    packages, files = code_of(config.task)
    begun, deadline = time.time(), time.monotonic() + ANSWER_S
    for probe in probes:
        probe.request("facts", {"token": str(token), "packages": packages, "files": files})
    facts: list[NodeFacts] = []
    missing: dict[str, ShoalError] = {}
    for probe in probes:
        try:
            data = probe.answer(deadline)
        except ShoalError as error:
            missing[probe.host] = error
            continue
        # The other clock was read between the request and now, so the offset is between these two.
        least, most = data["time"] - time.time(), data["time"] - begun
        data["fingerprint"]["host"] = data["host"] = probe.host
        data["clock_offset"] = max(least, min(0.0, most))
        facts.append(from_plain(NodeFacts, {each.name: data[each.name] for each in fields(NodeFacts)}))
    return facts, missing


def _combined(missing: Mapping[str, ShoalError]) -> ShoalError:
    """Return one error with the text of all, first of all one that the user has to mend."""
    first = next((error for error in missing.values() if isinstance(error, UsageError)), next(iter(missing.values())))
    others = [str(error) for error in missing.values() if error is not first]
    first.details = "\n".join([first.details, *others]).strip()
    return first


def _find_rendezvous(
    probes: Sequence[_HostProbe], facts: Sequence[NodeFacts], interface: str | None
) -> tuple[str | None, list[dict[str, str]]]:
    """Return an address of the first host to which all others can connect, and each host's variables for that route.

    Raises:
        UsageError: There is none.
    """
    if len(facts) == 1:
        return None, [{}]
    candidates = rendezvous_candidates(facts[0], interface)
    first, *others = probes
    first.request("listen", {"addresses": candidates})
    ports = first.answer()["ports"]
    for probe in others:
        probe.request("reach", {"ports": ports, "interface": interface})
    found = [probe.answer()["routes"] for probe in others]
    address = next((each for each in candidates if all(each in routes for routes in found)), None)
    if address is None:
        unconnected = [probe.host for probe, routes in zip(others, found, strict=True) if not routes]
        hosts = ", ".join(unconnected or [probe.host for probe in others])
        via = f" through {interface}" if interface else ""
        raise UsageError(
            f"Host {hosts} cannot connect to host {facts[0].host}{via}, where the workers meet (tried "
            f"{', '.join(candidates) or 'no address'}): open the way between them in their firewalls, or pass another "
            "--interface."
        )
    own = next(name for name, each in facts[0].addresses.items() if address in each)
    routes = [Route(address, address, own), *(Route(address, *routes[address]) for routes in found)]
    return address, [route.environment() for route in routes]
