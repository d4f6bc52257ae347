"""The host probe: facts about the nodes of `--hosts`, all requested at once over ssh, and the plan of each node.

Everything that keeps a node from training is reported here, before any training starts, with its remedy.
"""

import queue
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from shoal.config import LaunchConfig
from shoal.config.plain import from_plain
from shoal.errors import ShoalError, UsageError, WorkerLostError, refusing_os_errors
from shoal.launch.remote.channel import Message
from shoal.launch.remote.ssh import SshConnection, refuse_without_ssh
from shoal.machine.host import nearest_existing
from shoal.machine.network import Route
from shoal.plan.devices import parse_gpu_ids
from shoal.plan.environment_parity import code_of, fingerprint, refuse_differences
from shoal.plan.launch import refuse_unwritable
from shoal.plan.nodes import NodeFacts, NodePlan, Nodes, plan_devices, rendezvous_candidates
from shoal.plan.slurm import allocated_hosts
from shoal.timing import ANSWER_S, POLL_S


def probe_hosts(
    environ: Mapping[str, str],
    config: LaunchConfig,
    tasks: Sequence[str],
    on_missing: Callable[[ShoalError], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Nodes:
    """Probe all hosts of a configuration, and plan the workers of each, which run these tasks.

    `on_missing` is called for each host that is unreachable and left out; by default none is. `check` is a cancellation
    hook, polled, which raises to abort.

    Raises:
        UsageError: A host cannot train, or differs from the others.
        WorkerLostError: One is unreachable.
    """
    hosts = allocated_hosts(environ) if config.hosts == ("slurm",) else config.hosts
    refuse_without_ssh(config.ssh_config)
    log_root = Path(config.log_root)
    refuse_unwritable("--log-root", log_root)
    with ExitStack() as stack:
        probes = [_HostProbe(host, config.ssh_config, check, stack) for host in hosts]
        # By this file nodes find out whether they share the directory where runs are made.
        nearest = nearest_existing(log_root)
        failure = f"--log-root asks for {log_root}, but {nearest} takes no file"
        with refusing_os_errors(failure, "pass a directory that you can write to"):
            token = stack.enter_context(NamedTemporaryFile(prefix=".shoal-", dir=nearest))
        facts, missing = _gather(probes, tasks, token.name)
        for error in missing.values():
            if on_missing is None or not facts:
                raise _combined([*missing.values()])
            on_missing(error)
        own = fingerprint(socket.gethostname(), *code_of(tasks))
        refuse_differences(own, [each.fingerprint for each in facts])
        planned, notes = plan_devices(parse_gpu_ids(config.gpu_ids), config.nproc_per_node, facts)
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
        self._deadline = 0.0
        stack.callback(self._connection.close)

    def request(self, kind: str, data: Mapping[str, Any]) -> None:
        self._deadline = time.monotonic() + ANSWER_S
        self._connection.channel.send(kind, data)

    def answer(self) -> Message:
        """Return the answer to the last request, or raise ShoalError."""
        while self._inbox.empty():
            self._check()
            if time.monotonic() > self._deadline:
                raise WorkerLostError(
                    f"Host {self.host} was too slow: no answer within {ANSWER_S:.0f} s. See how it is, and try again.",
                    host=self.host,
                )
            time.sleep(POLL_S)
        answer = self._inbox.get()
        if answer is None:
            raise self._connection.error()
        return answer


def _gather(
    probes: Sequence[_HostProbe], tasks: Sequence[str], token: str
) -> tuple[list[NodeFacts], dict[str, ShoalError]]:
    """Request facts from all hosts at once; return them, and an error for each host without an answer."""
    packages, files = code_of(tasks)
    begun = time.time()
    for probe in probes:
        probe.request("facts", {"token": token, "packages": packages, "files": files})
    facts: list[NodeFacts] = []
    missing: dict[str, ShoalError] = {}
    for probe in probes:
        try:
            data = probe.answer()
        except ShoalError as error:
            missing[probe.host] = error
            continue
        # The other clock was read between the request and now, so the offset is between these two.
        least, most = data["time"] - time.time(), data["time"] - begun
        data["fingerprint"]["host"] = data["host"] = probe.host
        data["clock_offset"] = max(least, min(0.0, most))
        facts.append(from_plain(NodeFacts, {each.name: data[each.name] for each in fields(NodeFacts)}))
    return facts, missing


def _combined(errors: Sequence[ShoalError]) -> ShoalError:
    """Return one error with the text of all, first of all one that the user has to mend."""
    first = next((error for error in errors if isinstance(error, UsageError)), errors[0])
    others = [str(error) for error in errors if error is not first]
    first.details = "\n".join([first.details, *others]).strip()
    return first


def _find_rendezvous(
    probes: Sequence[_HostProbe], facts: Sequence[NodeFacts], interface: str | None
) -> tuple[str | None, list[dict[str, str]]]:
    """Return an address of the first host to which all others can connect, and each host's variables for that route."""
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
