"""Handshake of ranks that were started on several nodes, before anything is made.

Each rank publishes in the store what its node runs and was asked, or why it refuses. A node with another version,
another command or no GPU ends all ranks at once, with the same message, and a late rank is named.
"""

from __future__ import annotations

import json
import math
import platform
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.launch.rendezvous import Rendezvous, acknowledge
from shoal.plan.environment_parity import Fingerprint, code_of, fingerprint, refuse_differences
from shoal.plan.ranks import joined_rank
from shoal.timing import REFUSAL_S, RENDEZVOUS_POLL_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.launch.signed_store import SignedStore
    from shoal.plan.ranks import Rank
    from shoal.plan.training import TrainPlan

_MAY_DIFFER = {"gpu_ids", "nproc_per_node", "log_root", "torchrunx_log_dir", *NOT_REPEATED}
"""Fields that each node may be asked in its own way."""


def shake_hands(store: SignedStore, rank: Rank, plan: TrainPlan) -> str:
    """Publish what this rank would do, wait for all ranks, and compare.

    Returns:
        The backend of the process group: `gloo` if one rank cannot use NCCL.

    Raises:
        UsageError: A rank refuses, or its node is not like rank 0's.
        WorkerLostError: A rank does not come.
    """
    config = plan.config
    packages, files = code_of(config.task)
    own = {
        "host": platform.node(),
        "backend": plan.backend,
        # A continued run has its configuration where rank 0 is.
        "config": None if config.resume is not None else _flat(to_plain(config)),
        "code": asdict(fingerprint(platform.node(), packages, files)) if rank.local_rank == 0 else None,
    }
    store.set(_key(rank.rank), json.dumps(own))
    published = _wait_for_all(store, rank, config.startup_timeout)
    for number, each in enumerate(published):
        if "refusal" in each:
            message = f"Rank {number} on {each['host']} refuses: {each['refusal']}"
            raise UsageError(message)
    _refuse_other_commands(published)
    first, *others = [Fingerprint(**each["code"]) for each in published if each["code"]]
    refuse_differences(first, others)
    return "gloo" if any(each["backend"] == "gloo" for each in published) else "nccl"


def publish_refusal(environ: Mapping[str, str], log_root: str, error: UsageError) -> None:
    """Publish why this rank refuses, if it has peers on other nodes: they would wait for it."""
    rank = joined_rank(environ)
    if rank is not None and rank.local_world_size < rank.world_size:
        refusal = {"host": platform.node(), "refusal": str(error)}
        with suppress(ShoalError, RuntimeError):  # No other rank has come yet.
            rendezvous = Rendezvous.of(rank, log_root, environ)
            store = rendezvous.open(rank, REFUSAL_S)
            store.set(_key(rank.rank), json.dumps(refusal))
            acknowledge(store, rank, "handshake")
            rendezvous.forget_secret(rank)


def _wait_for_all(store: SignedStore, rank: Rank, startup_timeout: float) -> list[dict[str, Any]]:
    """Return what each rank has published, by rank."""
    missing = list(range(rank.world_size))
    begun = time.monotonic()
    while missing := [number for number in missing if not store.check([_key(number)])]:
        waited = time.monotonic() - begun
        if waited < (startup_timeout or math.inf):
            time.sleep(RENDEZVOUS_POLL_S)
            continue
        late = ", ".join(map(str, missing))
        message = (
            f"Rank {late} of {rank.world_size} has not arrived within {waited:.0f} s: see whether its machine is there "
            "and was started, and start all of them again. --startup-timeout waits longer."
        )
        raise WorkerLostError(message)
    published = [json.loads(store.get(_key(number))) for number in range(rank.world_size)]
    acknowledge(store, rank, "handshake")
    return published


def _refuse_other_commands(published: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks whose configuration is not rank 0's.

    Raises:
        UsageError: With the name and both values of each difference.
    """
    first = published[0]["config"]
    for number, each in enumerate(published if first else ()):
        other = each["config"] or first
        names = [name for name in first | other if first.get(name) != other.get(name)]
        if names:
            details = "\n".join(f"{name}: {other.get(name)!r} there, {first.get(name)!r} on rank 0" for name in names)
            message = (
                f"Rank {number} on {each['host']} was asked something else than rank 0 on {published[0]['host']}, as "
                "listed above: type the same command on all machines."
            )
            raise UsageError(message, details=details)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values that must be equal on all nodes, by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if prefix or name not in _MAY_DIFFER:
            flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _key(rank: int) -> str:
    return f"shoal/handshake/{rank}"
