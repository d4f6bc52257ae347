"""The story of `shoal doctor`: look at everything that a training needs, say what was found, and whether it would work.

Each check is a small function that yields findings; another check is another entry of `CHECKS`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal import __version__
from shoal.checks.findings import problem
from shoal.doctor import apart, gpus, machine, software, talk
from shoal.doctor.ask import Ask
from shoal.errors import MachineBusyError, ShoalError, UsageError
from shoal.plan.devices import visible_gpus
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shoal.checks.findings import Finding
    from shoal.config import DoctorConfig

    _Check = Callable[[Ask], Iterable[Finding]]

CHECKS: tuple[_Check, ...] = (
    software.python,
    software.packages,
    software.language,
    software.variables,
    machine.cores,
    machine.open_files,
    machine.storage,
    machine.loopback,
    machine.names,
    software.driver,
    gpus.gpus,
    software.torch,
    software.verified,
    gpus.links,
    gpus.kernels,
    talk.gloo,
    talk.nccl,
)
"""What is looked at, in the order in which it is told."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found."""

    findings: tuple[Finding, ...]

    @property
    def error(self) -> ShoalError | None:
        """What to end the command with: None when training would work as asked."""
        problems = [finding for finding in self.findings if finding.level == "problem"]
        if not problems:
            return None
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        first = problems[0].sentence
        if all(finding.transient for finding in problems):
            message = f"Training would not work now ({count} that may pass by). The first: {first}"
            return MachineBusyError(message)
        message = f"Training would not work as asked ({count}). The first: {first}"
        return UsageError(message)

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "shoal": __version__,
            "exit_code": self.error.exit_code if self.error else 0,
            "findings": [finding.to_plain() for finding in self.findings],
        }


def examine(config: DoctorConfig, environ: Mapping[str, str], say: Callable[[str], None]) -> Diagnosis:
    """Look at everything that `config` asks for.

    Args:
        config: What to look at.
        environ: Environment variables.
        say: Takes a line about each thing that takes a while.

    Raises:
        UsageError: What was asked cannot be understood.
    """
    if config.hosts:
        return Diagnosis(tuple(apart.examine_machines(config, environ, say)))
    with closing(Ask(config=config, environ=environ, gpus=visible_gpus(environ), say=say)) as ask:
        _ = ask.gpu_ids  # Words that are no GPUs, and a task that is none, are refused before anything is looked at.
        if config.task is not None:
            registry.resolve(config.task)
        _ = ask.children  # They run while the rest is looked at.
        found = (finding for check in CHECKS for finding in _found_by(check, ask))
        return Diagnosis(tuple(dict.fromkeys(found)))  # Two checks may look at the same thing.


def _found_by(check: _Check, ask: Ask) -> Iterator[Finding]:
    """Return what a check finds. One that fails is a finding itself, and the others go on."""
    try:
        yield from check(ask)
    except Exception as error:  # noqa: BLE001  A broken machine breaks in ways that nobody thought of.
        name = check.__name__
        truth = f"The check '{name}' failed ({type(error).__name__}: {error})"
        yield problem(name, truth, "please report it, with this line")
