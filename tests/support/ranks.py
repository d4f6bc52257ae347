"""Real processes, for tests of what ranks do together: started once, with a time limit, and never left behind."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnProcess


def run_on_ranks(count: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 240.0) -> list[Any]:
    """Call ``function(rank, *arguments)`` in so many fresh processes, and return what each returned, by rank.

    Args:
        count: Number of ranks.
        function: Found by import in a fresh process too, so it lives in `support`, not in a test module.
        arguments: Travel by pickle, as what the function returns does.
        timeout_s: After this long all processes are killed [s].

    Raises:
        RuntimeError: A rank raised, with its traceback; or it died, or the time was up.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    try:
        for rank in range(count):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_report, args=(theirs, function, rank, *arguments), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        return _collect(pipes, time.monotonic() + timeout_s)
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    """Wait for all reports. The first rank that failed ends the wait: its peers may hang for lack of it."""
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        for pipe in wait(waiting, timeout=max(0.0, deadline - time.monotonic())):
            rank = pipes.index(pipe)  # pyright: ignore[reportArgumentType]
            try:
                failure, results[rank] = pipes[rank].recv()
            except EOFError:
                failure = "It died without a word."
            if failure:
                message = f"Rank {rank} failed:\n{failure}"
                raise RuntimeError(message)
        if time.monotonic() > deadline:
            message = f"Ranks {sorted(set(range(len(pipes))) - results.keys())} did not finish in time."
            raise RuntimeError(message)
    return [results[rank] for rank in range(len(pipes))]


def _report(pipe: Connection, function: Callable[..., Any], rank: int, *arguments: Any) -> None:
    """Be one rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # The host's own name need not resolve.
    try:
        result = function(rank, *arguments)
    except BaseException:  # noqa: BLE001  It is reported, whatever it is.
        pipe.send((traceback.format_exc(), None))
    else:
        pipe.send(("", result))
