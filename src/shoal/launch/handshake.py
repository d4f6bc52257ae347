"""Ranks that were started on several machines make sure of each other before anything is made.

Each tells, through the store in which they meet, what its machine runs and was asked, or why it refuses. So a machine
with another version, another command or no GPU ends all of them at once, with the same words, and one that is late is
named.
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
from shoal.plan.nodes import choose_backend
from shoal.plan.ranks import joined_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.launch.signed_store import SignedStore
    from shoal.plan.ranks import Rank
    from shoal.plan.training import TrainPlan

_MAY_DIFFER = {"gpu_ids", "nproc_per_node", "log_root", "torchrunx_log_dir", *NOT_REPEATED}
"""What each machine may be asked in its own way. The run is where rank 0 was told."""
_POLL_S = 0.1
_DECLINE_S = 5.0
"""How long a rank that refuses looks for the others to tell them, where rank 0 keeps the store [s]."""


def arrive(store: SignedStore, rank: Rank, plan: TrainPlan) -> str | None:
    """Tell the others that this rank is there, and wait until all are.

    Args:
        store: In which the ranks have met.
        rank: This process's place.
        plan: What it would do.

    Returns:
        How all of them talk: `gloo` where one of them cannot through NCCL.

    Raises:
        UsageError: A rank refuses, or its machine is not like rank 0's.
        WorkerLostError: A rank does not come.
    """
    packages, files = code_of(plan.config.task)
    own = {
        "host": platform.node(),
        "backend": plan.backend,
        "config": _told(plan),
        "code": asdict(fingerprint(platform.node(), packages, files)) if rank.local_rank == 0 else None,
    }
    store.set(_key(rank.rank), json.dumps(own))
    told = _wait_for_all(store, rank, plan.config.startup_timeout)
    for number, each in enumerate(told):
        if "refusal" in each:
            message = f"Rank {number} on {each['host']} refuses: {each['refusal']}"
            raise UsageError(message)
    _refuse_other_words(told)
    first, *others = [Fingerprint(**each["code"]) for each in told if each["code"]]
    refuse_differences(first, others)
    return choose_backend((each["backend"] == "nccl" for each in told), rank.world_size)


def decline(environ: Mapping[str, str], log_root: str, error: UsageError) -> None:
    """Tell the ranks on other machines, if there are any, that this one refuses: they would wait for it."""
    rank = joined_rank(environ)
    if rank is not None and rank.local_world_size < rank.world_size:
        refusal = {"host": platform.node(), "refusal": str(error)}
        with suppress(ShoalError, RuntimeError):  # Nobody to be told has come, or not yet.
            meeting = Rendezvous.of(rank, log_root, environ)
            store = meeting.open(rank, _DECLINE_S)
            store.set(_key(rank.rank), json.dumps(refusal))
            acknowledge(store, rank, "arrivals")
            meeting.forget_secret(rank)


def _told(plan: TrainPlan) -> dict[str, Any] | None:
    """Return what must be asked alike on all machines. A run that goes on has its configuration where rank 0 is."""
    if plan.config.resume is not None:
        return None
    return {name: value for name, value in to_plain(plan.config).items() if name not in _MAY_DIFFER}


def _wait_for_all(store: SignedStore, rank: Rank, startup_timeout: float) -> list[dict[str, Any]]:
    """Return what each rank has told, by rank."""
    patience = startup_timeout or math.inf
    missing = list(range(rank.world_size))
    begun = time.monotonic()
    while missing := [number for number in missing if not store.check([_key(number)])]:
        waited = time.monotonic() - begun
        if waited < patience:
            time.sleep(_POLL_S)
            continue
        late = ", ".join(map(str, missing))
        message = (
            f"Rank {late} of {rank.world_size} has not arrived within {waited:.0f} s: see whether its machine is there "
            "and was started, and start all of them again. --startup-timeout waits longer."
        )
        raise WorkerLostError(message)
    told = [json.loads(store.get(_key(number))) for number in range(rank.world_size)]
    acknowledge(store, rank, "arrivals")
    return told


def _refuse_other_words(told: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks that were asked something else than rank 0.

    Raises:
        UsageError: Some were; with each name, and both values.
    """
    first = _flat(told[0]["config"])
    for number, each in enumerate(told if first else ()):
        other = _flat(each["config"]) or first
        names = [name for name in first | other if first.get(name) != other.get(name)]
        if names:
            details = "\n".join(f"{name}: {other.get(name)!r} there, {first.get(name)!r} on rank 0" for name in names)
            message = (
                f"Rank {number} on {each['host']} was asked something else than rank 0 on {told[0]['host']}, as listed "
                "above: type the same command on all machines."
            )
            raise UsageError(message, details=details)


def _flat(config: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in (config or {}).items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _key(rank: int) -> str:
    return f"shoal/arrived/{rank}"
