"""Checks of the GPUs: which there are and how they are, how they reach each other, and a kernel on each device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.checks.findings import note, ok, problem, size
from shoal.checks.preflight import holders_of, judge_gpu, wanted_gpus
from shoal.errors import UsageError
from shoal.machine import gpu_health

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.checks.findings import Finding
    from shoal.doctor.ask import Ask
    from shoal.machine.gpu_health import GpuLink, GpuState


def gpus(ask: Ask) -> Iterator[Finding]:
    """Look at what is visible, and at what was asked for."""
    if isinstance(ask.workers, UsageError):
        yield problem("devices", str(ask.workers).rstrip("."), "")
    else:
        for each in ask.workers.notes:
            yield note("devices", each.rstrip("."))
        yield ok("devices", f"{len(ask.devices)} workers on {', '.join(dict.fromkeys(ask.devices))}")
    if not ask.gpus:
        yield ok(
            "GPUs", f"none is visible ({ask.gpus.problem or 'this machine has none, or CUDA_VISIBLE_DEVICES hides it'})"
        )
    workers = Counter(ask.devices)
    for state in ask.states:
        wanted = workers[f"cuda:{state.index}"]
        if wanted:
            yield from judge_gpu(state, wanted, None, sure=not ask.gpus.order_is_uncertain)
        yield ok(f"GPU {state.index}", describe(state))


def describe(state: GpuState) -> str:
    """Return how a GPU is, in one line."""
    told = [state.name]
    if state.free_bytes is not None and state.total_bytes is not None:
        told.append(f"{size(state.free_bytes)} of {size(state.total_bytes)} free")
    if state.holders:
        told.append(f"used by {holders_of(state)}")
    if state.temperature_c is not None:
        told.append(f"{state.temperature_c} °C")
    if state.uncorrected_errors is not None:
        told.append(f"{state.uncorrected_errors} uncorrected memory errors")
    if state.compute_mode not in (None, "default"):
        told.append(f"compute mode {state.compute_mode}")
    if state.uuid.startswith("MIG-"):
        told.append("a MIG device")
    return ", ".join(told)


def links(ask: Ask) -> Iterator[Finding]:
    """Look how the wanted GPUs reach each other, in the driver's view and in torch's."""
    wanted = wanted_gpus(ask.devices, ask.gpus)
    if len(wanted) > 1:
        peers = None if isinstance(ask.torch, str) else ask.torch["peers"]
        yield from judge_links(gpu_health.read_gpu_links(wanted), peers)


def judge_links(found: Sequence[GpuLink], peers: Sequence[Sequence[int]] | None) -> Iterator[Finding]:
    """Look for pairs of GPUs that do not reach each other directly.

    Args:
        found: What the driver says of each pair.
        peers: Pairs of which torch says that the first can read the other's memory. None when it was not asked.
    """
    for link in found:
        pair = f"GPUs {link.one} and {link.other}"
        told = f"{pair}: {link.path or 'the driver does not tell the way'}, peer access {link.peer_access or 'unknown'}"
        can = peers is None or ([link.one, link.other] in peers and [link.other, link.one] in peers)
        if link.peer_access == "ok" and not can:
            yield note(
                "links",
                f"{pair} have peer access by the driver, but not by torch",
                "set NCCL_P2P_DISABLE=1 if NCCL hangs",
            )
        elif link.peer_access not in (None, "ok"):
            yield note(
                "links", f"{pair} have no peer access ({link.peer_access}): gradients go through the host's memory"
            )
        yield ok("links", told)


def kernels(ask: Ask) -> Iterator[Finding]:
    """See what became of a kernel on each device, each in a process of its own."""
    for device in dict.fromkeys(ask.devices):
        yield judge_kernel(device, ask.children[device].answer())


def judge_kernel(device: str, answer: dict[str, Any] | str) -> Finding:
    """Look at what became of a kernel on a device."""
    topic = f"kernel on {device}"
    if isinstance(answer, str):
        return problem(
            topic, f"Warp could not run a kernel on {device} ({answer})", "mend the driver, or install warp-lang anew"
        )
    if not answer["right"]:
        return problem(topic, f"A kernel on {device} computed something wrong", "do not trust this device")
    if answer["why_not_captured"]:
        truth = f"A step on {device} cannot be captured as a graph ({answer['why_not_captured']})"
        return problem(topic, truth, "update the driver, or train with --env.no-step-graph, which is much slower")
    return ok(topic, f"ran, and was captured as a graph; loading it took {answer['loaded_s']:.1f} s")
