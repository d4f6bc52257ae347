"""The host probe: facts about the nodes of `--hosts`, all requested at once over ssh, and the plan of each node.

Everything that keeps a node from training is reported here, before any training starts, with its remedy.
"""

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
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
from shoal.plan.environment_parity import code_of, fingerprint, refuse_differences
from shoal.plan.launch import refuse_unwritable
from shoal.plan.nodes import NodeFacts, Nodes, parse_gpu_ids, plan_nodes, rendezvous_candidates
from shoal.plan.ranks import allocated_hosts
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
        connections = [SshConnection(host, config.ssh_config) for host in hosts]
        for connection in connections:
            stack.callback(connection.close)
        # By this file nodes find out whether they share the directory where runs are made.
        nearest = nearest_existing(log_root)
        failure = f"--log-root asks for {log_root}, but {nearest} takes no file"
        with refusing_os_errors(failure, "pass a directory that you can write to"):
            token = stack.enter_context(NamedTemporaryFile(prefix=".shoal-", dir=nearest))
        facts, missing = _gather(connections, tasks, token.name, check)
        for error in missing.values():
            if on_missing is None or not facts:
                raise _combined([*missing.values()])
            on_missing(error)
        own = fingerprint(socket.gethostname(), *code_of(tasks))
        refuse_differences(own, [each.fingerprint for each in facts])
        planned = plan_nodes(parse_gpu_ids(config.gpu_ids), config.nproc_per_node, facts)
        if not facts[0].shares_runs:
            raise UsageError(
                f"Node {facts[0].host} has rank 0, which writes the run, but does not see {log_root.absolute()}: pass "
                "--log-root with a directory that it shares with this machine, or start training there."
            )
        present = [connection for connection in connections if connection.host not in missing]
        rendezvous, networks = _find_rendezvous(present, facts, config.interface, check)
    nodes = tuple(replace(node, network=network) for node, network in zip(planned.nodes, networks, strict=True))
    return replace(planned, nodes=nodes, rendezvous=rendezvous)


def _ask(
    connections: Sequence[SshConnection],
    check: Callable[[], None],
    kind: str,
    data: Mapping[str, Any],
    missing: dict[str, ShoalError] | None = None,
) -> Iterator[tuple[str, Message]]:
    """Request the same from all nodes at once, and yield host and answer of each.

    Why a host does not answer is put into `missing`, or raised without that.
    """
    for connection in connections:
        connection.channel.send(kind, data)
    deadline = time.monotonic() + ANSWER_S
    for connection in connections:
        host, inbox = connection.host, connection.channel.inbox
        while inbox.empty() and time.monotonic() < deadline:
            check()
            time.sleep(POLL_S)
        if inbox.empty():
            error = WorkerLostError(
                f"Node {host} was too slow: no answer within {ANSWER_S:.0f} s. See how it is, and try again."
            )
        elif (answer := inbox.get()) is None:
            error = connection.error()
        else:
            yield host, answer
            continue
        if missing is None:
            raise error
        missing[host] = error


def _gather(
    connections: Sequence[SshConnection], tasks: Sequence[str], token: str, check: Callable[[], None]
) -> tuple[list[NodeFacts], dict[str, ShoalError]]:
    """Request facts from all hosts at once; return them, and an error for each host without an answer."""
    packages, files = code_of(tasks)
    begun = time.time()
    facts: list[NodeFacts] = []
    missing: dict[str, ShoalError] = {}
    asked = {"token": token, "packages": packages, "files": files}
    for host, data in _ask(connections, check, "facts", asked, missing):
        # The other clock was read between the request and now, so the offset is between these two.
        least, most = data["time"] - time.time(), data["time"] - begun
        data["fingerprint"]["host"] = data["host"] = host
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
    connections: Sequence[SshConnection], facts: Sequence[NodeFacts], interface: str | None, check: Callable[[], None]
) -> tuple[str | None, list[dict[str, str]]]:
    """Return an address of the first host to which all others can connect, and each host's variables for that route."""
    if len(facts) == 1:
        return None, [{}]
    candidates = rendezvous_candidates(facts[0], interface)
    first, *others = connections
    ((_, listening),) = _ask([first], check, "listen", {"addresses": candidates})
    request = {"ports": listening["ports"], "interface": interface}
    found = [answer["routes"] for _, answer in _ask(others, check, "reach", request)]
    address = next((each for each in candidates if all(each in routes for routes in found)), None)
    if address is None:
        unconnected = [each.host for each, routes in zip(others, found, strict=True) if not routes]
        hosts = ", ".join(unconnected or [each.host for each in others])
        via = f" through {interface}" if interface else ""
        raise UsageError(
            f"Node {hosts} cannot connect to node {facts[0].host}{via}, where the workers meet (tried "
            f"{', '.join(candidates) or 'no address'}): open the way between them in their firewalls, or pass another "
            "--interface."
        )
    own = next(name for name, each in facts[0].addresses.items() if address in each)
    routes = [Route(address, address, own), *(Route(address, *routes[address]) for routes in found)]
    return address, [route.environment() for route in routes]
