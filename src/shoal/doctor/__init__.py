"""`shoal doctor`: check everything that a training needs, and report whether it would work.

A check is a function that yields findings, listed in `CHECKS`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any

from shoal import __version__
from shoal.checks.findings import Finding, problem, problem_of, refusal_of
from shoal.config import DoctorConfig
from shoal.doctor import communication, node
from shoal.doctor.context import DoctorContext
from shoal.errors import MachineBusyError, ShoalError, UsageError, counted
from shoal.machine.gpus import visible_gpus
from shoal.tasks import registry

_Check = Callable[[DoctorContext], Iterable[Finding]]

CHECKS: tuple[_Check, ...] = (
    *(node.python, node.packages, node.commands, node.mjlab, node.language, node.variables),
    *(node.cores, node.open_files, node.task, node.network),
    *(node.driver, node.gpus, node.torch, node.verified, node.links, node.kernels),
    *(communication.gloo, communication.nccl),
)
"""All checks, in the order in which they are reported."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def error(self) -> ShoalError | None:
        """The error that ends the command: None when training would work as asked."""
        first = refusal_of(self.findings)
        if first is None:
            return None
        count = counted(sum(finding.level == "problem" for finding in self.findings), "problem")
        if isinstance(first, MachineBusyError):
            return MachineBusyError(f"Training would not work now ({count} that may pass by). The first: {first}")
        return UsageError(f"Training would not work as asked ({count}). The first: {first}")

    def to_plain(self) -> dict[str, Any]:
        """Return the findings as plain values, for JSON."""
        return {
            "shoal": __version__,
            "exit_code": self.error.exit_code if self.error else 0,
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(config: DoctorConfig, environ: Mapping[str, str], log: Callable[[str], None]) -> Diagnosis:
    """Run all checks, and `log` a line about each step that takes a while.

    Raises:
        UsageError: The configuration is invalid.
    """
    with closing(DoctorContext(config=config, environ=environ, gpus=visible_gpus(environ), log=log)) as context:
        if config.task is not None:
            registry.resolve(config.task)  # An unknown task, and an invalid --gpu-ids, are refused first.
        if not config.hosts:
            _ = context.workers
            with suppress(OSError):  # Without a directory for temporary files. The checks that need them tell it.
                _ = context.probes  # They run during the other checks.
        checks = (communication.nodes,) if config.hosts else CHECKS
        found = (finding for check in checks for finding in _findings_of(check, context))
        return Diagnosis(tuple(dict.fromkeys(found)))  # Two checks may find the same.


def _findings_of(check: _Check, context: DoctorContext) -> Iterator[Finding]:
    """Return the findings of a check. One that raises is a problem itself, and the others still run."""
    try:
        yield from check(context)
    except communication.STOPPED:
        raise
    except ShoalError as error:
        yield problem_of(check.__name__, error)
    except Exception as error:  # noqa: BLE001  A broken machine raises anything.
        name = check.__name__
        truth = f"The check '{name}' failed ({type(error).__name__}: {error})"
        yield problem(name, truth, "please report it, with this line")
