"""The *nodes* door: this command was typed on each of several machines, and starts its machine's share of the workers.

torch's elastic launcher does it, called in this process: its agents meet at machine 0, start the workers as ranks
behind the *joined* door, and start all of them again when one is lost or a machine comes back. What a rank needs of its
launcher beside that lies in a scratch directory: what was asked, and which run goes on.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import yaml

from shoal import PYTHON
from shoal.config.machines import number_of_nodes
from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import UsageError, WorkerLostError
from shoal.launch.elastic_state import DIRECTORY, final_failure, known_run
from shoal.launch.exit_records import failure_of, first_failure, read_all_exit_records
from shoal.launch.reaper import MARK, reaped_scratch
from shoal.launch.signals import ERRORS, ended_at_once
from shoal.machine.network import addresses_by_interface, answers, route_to
from shoal.plan.launchers import launcher_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NoReturn

    from torch.distributed import Store

    from shoal.config import TrainConfig
    from shoal.errors import ShoalError
    from shoal.launch.exit_records import ExitRecord
    from shoal.plan.training import TrainPlan

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Lets the workers of each attempt open a store of their own. Through the agents' store, torch 2.15 does not tell a
machine that comes later where it is: it waits for a key of its round that was set in the first one's."""
_LAST_CALL_S = 15
"""How long the machines that are there wait for more of them, once there are enough [s]."""
_FOREVER_S = 7 * 24 * 3600
_SAVE_S = 60
"""How long workers get to finish an iteration and a checkpoint after a signal [s]."""
_POLL_S = 2.0
"""Time between two looks whether machine 0 is there [s]."""
_REFUSAL = "shoal/refusal"
"""In the store of machine 0: why a launcher refuses, and beside it which others have heard it."""
_DECLINE_S = timedelta(seconds=10)
"""How long a launcher that refuses looks for the others to tell them [s]."""
_LONGER_THAN_WORKERS_S = 8.0
"""How much longer than the time in which its workers give a machine up this process waits for it [s]."""
_SIGNALS = ",".join(["SIGQUIT", *ERRORS])


def run_nodes(plan: TrainPlan, give_up: Callable[[ShoalError], NoReturn]) -> None:
    """Run this machine's share of a training, and wait for it.

    Args:
        plan: What was asked of this machine.
        give_up: Ends this process from any thread, when machine 0 is lost and torch still waits for it.

    Raises:
        UsageError: The machines cannot meet as asked.
        ShoalError: With the exit code of how it ended here.
    """
    refuse_wrong_meeting(plan)
    with reaped_scratch() as scratch:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # A store that does not answer is told in our own words.
        least, most = number_of_nodes(plan.config.nnodes or "1")
        if least == most:  # Otherwise the others may do without.
            threading.Thread(target=_heed_refusals, args=(plan, scratch, give_up), daemon=True).start()
        if plan.config.node_rank:
            _wait_for_machine_0(plan)
            threading.Thread(target=_follow, args=(plan, scratch, give_up), name="machine 0", daemon=True).start()
        (scratch / "asked.yaml").write_text(yaml.safe_dump(_asked_of_workers(plan), sort_keys=False), encoding="utf-8")
        os.environ |= {DIRECTORY: str(scratch), MARK: str(scratch), _OWN_STORE: "1"}
        os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SAVE_S))
        try:
            _launch(plan, scratch)
        finally:
            for name in (DIRECTORY, MARK, _OWN_STORE):
                del os.environ[name]


def refuse_wrong_meeting(plan: TrainPlan) -> None:
    """Refuse an address of machine 0 that leads nowhere, or that is not its own.

    Raises:
        UsageError: Then the machines would wait for each other in vain.
    """
    address, number = plan.config.master_addr or "", plan.config.node_rank
    route = route_to(address)
    if route is None:
        message = (
            f"--master-addr {address} was passed, but it does not resolve on {platform.node()}, or no network "
            "interface leads there: pass an address of machine 0."
        )
        raise UsageError(message)
    if number == 0 and not route.is_local:
        own = ", ".join(each for addresses in addresses_by_interface().values() for each in addresses)
        message = (
            f"--node-rank 0 was passed on {platform.node()}, but --master-addr {address} is none of its addresses "
            f"({own}): pass one of them on all machines, or another --node-rank here."
        )
        raise UsageError(message)


def _asked_of_workers(plan: TrainPlan) -> dict[str, Any]:
    """Return the configuration of the workers. This launcher is the one that restarts them and counts them."""
    alone: dict[str, Any] = {"nnodes": None, "node_rank": None, "master_addr": None}
    config = replace(plan.config, max_restarts=0, min_workers=None, nproc_per_node=None, **alone)
    return {name: value for name, value in to_plain(config).items() if name not in NOT_REPEATED}


def _words(plan: TrainPlan, scratch: Path) -> list[str]:
    """Return the words that make a process a worker of this training."""
    config = plan.config
    words = [*PYTHON[1:], "-u", "-m", "shoal", "train", "--config", str(scratch / "asked.yaml")]
    if config.resume is not None:
        words += ["--resume", *config.resume]
    if config.checkpoint is not None:
        words += ["--checkpoint", config.checkpoint]
    if config.interface is not None:
        words += ["--interface", config.interface]
    return words


def _wait_for_machine_0(plan: TrainPlan) -> None:
    """Wait until machine 0 has been started. torch waits as long for every answer as for the first.

    Raises:
        WorkerLostError: It was not, in time.
    """
    begun = time.monotonic()
    patience = plan.config.startup_timeout or math.inf
    while not _reaches_machine_0(plan.config):
        if time.monotonic() - begun > patience:
            raise _not_met(plan, f"machine 0 does not answer within {patience:.0f} s")
        time.sleep(_POLL_S)


def _follow(plan: TrainPlan, scratch: Path, give_up: Callable[[ShoalError], NoReturn]) -> None:
    """End this process when machine 0 has not been reached for longer than its workers wait."""
    limit = (plan.config.stall_timeout or math.inf) + _LONGER_THAN_WORKERS_S
    heard = time.monotonic()
    while (silent := time.monotonic() - heard) <= limit:
        time.sleep(_POLL_S)
        if _reaches_machine_0(plan.config):
            heard = time.monotonic()
    cause = _cause_here(scratch)
    if cause is None:
        message = (
            f"Lost machine 0 from {platform.node()}: {plan.config.master_addr}, port {plan.config.master_port}, has "
            f"not answered for {silent:.0f} s. Look at it and at the network, and pass --resume to go on."
        )
        give_up(WorkerLostError(message))
    give_up(failure_of(cause))


def _reaches_machine_0(config: TrainConfig) -> bool:
    return answers(config.master_addr or "", config.master_port)


def refuse_elastic(config: TrainConfig, error: UsageError) -> None:
    """Tell the launchers of the other machines that this one refuses: they would wait for it."""
    if config.nnodes is None or config.dry_run or launcher_of(os.environ) is not None:
        return
    is_first, begun = config.node_rank == 0, time.monotonic()
    while not is_first and not _reaches_machine_0(config):
        if time.monotonic() - begun > _DECLINE_S.total_seconds():
            return
        time.sleep(_POLL_S)
    message = f"Machine {config.node_rank} ({platform.node()}) refuses: {error}"
    with suppress(RuntimeError):  # Others are not there, or not yet.
        store = _store_of_machine_0(config, is_master=is_first)
        store.set(_REFUSAL, message)
        others = range(1, number_of_nodes(config.nnodes)[1] if is_first else 1)
        store.wait([_REFUSAL, *(f"{_REFUSAL}/{number}" for number in others)], _DECLINE_S)


def _heed_refusals(plan: TrainPlan, scratch: Path, give_up: Callable[[ShoalError], NoReturn]) -> None:
    """End this process when another launcher refuses before there is a run."""
    import torch.distributed  # noqa: F401  It takes longer than a machine 0 that refuses waits.

    while known_run(scratch) is None:
        time.sleep(_POLL_S)
        if not _reaches_machine_0(plan.config):
            continue
        with suppress(RuntimeError):  # Machine 0 is gone again.
            store = _store_of_machine_0(plan.config)
            store.wait([_REFUSAL], timedelta(seconds=_FOREVER_S))
            if known_run(scratch) is None:
                error = UsageError(store.get(_REFUSAL).decode())
                store.set(f"{_REFUSAL}/{plan.config.node_rank}", "")
                time.sleep(0 if plan.config.node_rank else _POLL_S)  # Machine 0 has the store: all others must hear.
                give_up(error)


def _store_of_machine_0(config: TrainConfig, *, is_master: bool = False) -> Store:
    from torch.distributed import TCPStore

    address, port = config.master_addr or "", config.master_port
    return TCPStore(address, port, is_master=is_master, wait_for_workers=False, timeout=_DECLINE_S)


def _launch(plan: TrainPlan, scratch: Path) -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # Their last line is said here.
    try:
        elastic_launch(_elastic_config(plan), sys.executable)(*_words(plan, scratch))
    except SignalException as error:
        name = signal.Signals(error.sigval).name
        cause, run = _cause_here(scratch), known_run(scratch)
        if cause is not None:
            raise failure_of(cause) from None
        if run is not None:
            raise ended_at_once(name, run) from None
        message = f"{name} ended the run at once. It has no checkpoint yet: start it again."
        raise ERRORS.get(name, ERRORS["SIGTERM"])(message) from None
    except ChildFailedError as error:
        raise _failure(scratch, {rank: each.exitcode for rank, each in error.failures.items()}) from None
    except RendezvousError as error:
        cause = _cause_here(scratch)
        raise (_not_met(plan, str(error.__cause__ or error)) if cause is None else failure_of(cause)) from None


def _not_met(plan: TrainPlan, why: str) -> WorkerLostError:
    config = plan.config
    message = (
        f"The machines of --nnodes {config.nnodes} did not meet at {config.master_addr}, port {config.master_port} "
        f"({why}): see whether the others are there, and start all of them again. --startup-timeout waits longer."
    )
    return WorkerLostError(message)


def _cause_here(scratch: Path) -> ExitRecord | None:
    """Return what the first worker of this machine has said that failed by itself."""
    run = known_run(scratch)
    return None if run is None else first_failure(read_all_exit_records(run, platform.node()))


def _elastic_config(plan: TrainPlan) -> Any:  # noqa: ANN401  torch is imported late.
    """Return what the elastic launcher is told."""
    from torch.distributed.launcher.api import LaunchConfig

    config = plan.config
    least, most = number_of_nodes(config.nnodes or "1")
    number = config.node_rank or 0
    address = config.master_addr or ""
    patience = round(config.startup_timeout) or _FOREVER_S
    told: dict[str, Any] = {
        "min_nodes": least,
        "max_nodes": most,
        "nproc_per_node": len(plan.devices),
        "run_id": f"shoal-{config.master_port}",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": f"[{address}]:{config.master_port}" if ":" in address else f"{address}:{config.master_port}",
        "rdzv_configs": {
            "is_host": number == 0,
            "timeout": patience,
            "join_timeout": patience,
            "last_call_timeout": _LAST_CALL_S,
            "read_timeout": round(config.stall_timeout + _LONGER_THAN_WORKERS_S)
            if config.stall_timeout
            else _FOREVER_S,
        },
        "max_restarts": config.max_restarts,
        "monitor_interval": 0.1,
        # Machines are ordered by this name. Machine 0 has to be the first, and its name is where workers meet.
        "local_addr": address if number == 0 else f"~{number:05d}",
    }
    newer = {"signals_to_handle": _SIGNALS, "shutdown_timeout": _SAVE_S}
    known = {each.name for each in fields(LaunchConfig)}
    return LaunchConfig(**told, **{name: value for name, value in newer.items() if name in known})


def _failure(scratch: Path, exit_codes: dict[int, int]) -> ShoalError:
    """Return the error of workers that failed here: the first that said why, or how they ended."""
    cause = final_failure(scratch) or _cause_here(scratch)
    if cause is not None:
        return failure_of(cause)
    rank, code = next(iter(exit_codes.items()))
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    message = f"Lost rank {rank} on {platform.node()}: {how}. Its own output, above, may tell more."
    return UsageError(message) if code == UsageError.exit_code else WorkerLostError(message, rank=rank)
