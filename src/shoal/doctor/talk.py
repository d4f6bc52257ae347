"""Checks of how ranks talk: a timed all_reduce at each number of ranks, through gloo and through NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.checks.findings import note, ok, problem
from shoal.doctor.settings import export_line, smallest_settings
from shoal.doctor.steps import GRADIENT, TINY
from shoal.doctor.trial import Limits, Ranks, Trial, run_trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.checks.findings import Finding
    from shoal.doctor.ask import Ask

SLOW_S = 0.02
"""An all_reduce of gradients that takes longer is worth a note [s]: an iteration has some twenty of them."""
_EACH_UP_TO = 8
"""Up to so many ranks, each number of them is tried; beyond, powers of two and the largest."""


def gloo(ask: Ask) -> Iterator[Finding]:
    """Let ranks on the CPU talk through gloo."""
    if len(ask.devices) > 1:
        yield from _examine(ask, "gloo", ("cpu",) * len(ask.devices))


def nccl(ask: Ask) -> Iterator[Finding]:
    """Let ranks on GPUs talk through NCCL, and where they cannot, look for settings with which they can."""
    whole = [gpu.index for gpu in ask.gpus if not gpu.is_mig]
    devices = tuple(f"cuda:{index}" for index in whole if f"cuda:{index}" in ask.devices)
    if len(devices) > 1:
        yield from _examine(ask, "nccl", devices)


def _examine(ask: Ask, backend: str, devices: Sequence[str]) -> Iterator[Finding]:
    """Run one trial with the defaults, and where it fails through NCCL, others with other settings."""
    ranks = Ranks(devices=devices, backend=backend, sizes=sizes(len(devices)))
    limits = Limits(progress_s=ask.config.timeout)
    ask.say(f"Timing all_reduce through {backend} among {', '.join(map(str, ranks.sizes))} ranks.")
    trial = run_trial(ranks, limits)
    settings = None
    if backend == "nccl" and not trial.worked and not trial.killed:

        def works(candidate: Mapping[str, str]) -> bool:
            ask.say(f"NCCL failed: {trial.failure}. Trying {export_line(candidate)}.")
            return run_trial(ranks, limits, environ=candidate).worked

        settings = smallest_settings(works, taken=list(ask.environ))
    yield from judge_trial(backend, trial, settings)


def sizes(most: int) -> list[int]:
    """Return the numbers of ranks to try, from 2 up to `most`."""
    if most <= _EACH_UP_TO:
        return list(range(2, most + 1))
    powers = [2**exponent for exponent in range(1, most.bit_length()) if 2**exponent < most]
    return [*powers, most]


def judge_trial(backend: str, trial: Trial, settings: Mapping[str, str] | None) -> Iterator[Finding]:
    """Look at what a trial came to.

    Args:
        backend: `nccl` or `gloo`.
        trial: The trial with the defaults.
        settings: With which NCCL talks all the same. None when there are none, or none were looked for.
    """
    for size in sorted({timing.size for timing in trial.timings}):
        took = {timing.elements: timing.seconds for timing in trial.timings if timing.size == size}
        if {TINY, GRADIENT} <= took.keys():
            told = f"{took[TINY] * 1e3:.2f} ms for a number, {took[GRADIENT] * 1e3:.2f} ms for 1.76 MB of gradients"
            if took[GRADIENT] > SLOW_S:
                remedy = "expect several workers to gain little, or look for what else keeps the cores busy"
                yield note(f"{backend}, {size} ranks", f"all_reduce is slow: {told}", remedy)
            else:
                yield ok(f"{backend}, {size} ranks", told)
    if trial.failure is not None:
        yield problem(
            backend,
            f"all_reduce through {backend} failed: {trial.failure}",
            _remedy(backend, trial, settings),
            transient=trial.killed,
        )


def _remedy(backend: str, trial: Trial, settings: Mapping[str, str] | None) -> str:
    if settings:
        return export_line(settings)
    if trial.killed:
        return "look for what killed it, such as the kernel when memory runs out, and try again"
    if backend == "nccl":
        return "no setting that was tried helps: train with --gpu-ids of one GPU, and look at NCCL_DEBUG=INFO"
    return "train with one worker, and look for a firewall, a stopped process, or a machine that is far too busy"
