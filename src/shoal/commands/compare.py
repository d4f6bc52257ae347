"""The `compare` command: which of two policies, or of two evaluations, has the higher mean return."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shoal.commands.evaluate import find_jobs
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.config.plain import shared_fields
from shoal.errors import UsageError, counted
from shoal.jobs.comparison import Episode, Verdict, judge, pair
from shoal.jobs.entries import Overrides
from shoal.jobs.results import iterate_episodes
from shoal.plan.job import Job
from shoal.plan.ranks import joined_rank
from shoal.reading import refusing

FIRST_ROUND = 64
"""Episodes of each policy after the first round. Each further round doubles them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of A and B in one task."""

    task: str
    a: str
    """The policy, or the directory of results."""
    b: str
    verdict: Verdict
    unpaired: int = 0
    """Episodes of either side that the other one lacks."""
    differing: tuple[str, ...] = ()
    """Fields of the environment that differ, though no job was asked to change them."""

    def lines(self) -> Iterator[str]:
        """Yield the verdict, and what it leaves out."""
        yield f"{self.task}: {self.verdict.text}"
        yield f"A is {self.a}, B is {self.b}."
        seen = self.verdict.failures
        yield f"Failures: {seen.a:,} of A, {seen.b:,} of B; {seen.only_a:,} of A alone, {seen.only_b:,} of B alone."
        if self.unpaired:
            yield f"{counted(self.unpaired, 'episode')} of A or B alone: left out."
        if self.verdict.diverged:
            yield f"{counted(self.verdict.diverged, 'pair')} with a return that is not finite: left out of returns."
        if self.differing:
            yield f"The environments of A and B differ in {', '.join(self.differing)}: returns may not be comparable."

    def to_plain(self) -> dict[str, Any]:
        """Return the comparison as plain values; None for a mean or an end of the interval that is not finite."""
        plain = asdict(self)
        verdict = plain.pop("verdict")
        for name in ("mean", "low", "high"):
            verdict[name] = verdict[name] if math.isfinite(verdict[name]) else None
        return plain | verdict


def compare(config: CompareConfig) -> list[Comparison]:
    """Compare two directories of results; return a comparison for each task that both have.

    Raises:
        UsageError: A directory has no results, or nothing pairs.
    """
    return [
        Comparison(
            task=each.task,
            a=config.a,
            b=config.b,
            verdict=judge(each.pairs, config.return_range),
            unpaired=each.unpaired,
            differing=_differing_fields(*each.jobs),
        )
        for each in pair(Path(config.a), Path(config.b))
    ]


def _differing_fields(jobs_a: Sequence[Job], jobs_b: Sequence[Job]) -> tuple[str, ...]:
    """Return the fields of the environments that differ between two sides, without those of variations."""
    jobs = (*jobs_a, *jobs_b)
    names = {name for job in jobs for name in job.env}
    varied = {name.partition(".")[0] for job in jobs for name in job.variation}
    values = {name: [{repr(job.env.get(name)) for job in side} for side in (jobs_a, jobs_b)] for name in names - varied}
    return tuple(sorted(name for name, (a, b) in values.items() if a != b))


def compare_policies(
    config: ComparePoliciesConfig,
    overrides: Overrides,
    run_jobs: Callable[[EvaluateConfig, Sequence[Job]], Path],
    on_round: Callable[[Verdict], None],
) -> Comparison:
    """Evaluate two policies on the same episodes, in rounds, until the verdict is sure or all episodes are run.

    `run_jobs` runs jobs with the flags of `evaluate`, and returns the directory of the results. `on_round` takes the
    verdict after each round that another one follows.

    Raises:
        UsageError: A side is no policy, or several, or torchrun or srun started this process.
    """
    if joined_rank() is not None:
        raise UsageError(
            "`shoal compare TASK A B` starts workers once a round, but torchrun or srun starts them once: run it by "
            "itself, with --nproc-per-node or --hosts, or `evaluate` each policy, and compare the directories."
        )
    flags = EvaluateConfig(**shared_fields(EvaluateConfig, config), seeds=(config.seed,))
    sides = [_job_of(side, policy, flags, overrides) for side, policy in (("A", config.a), ("B", config.b))]
    pairs: list[tuple[Episode, Episode]] = []
    first = 0
    while True:
        end = min(2 * first or FIRST_ROUND, config.num_episodes)
        # The range is in the name, so that the same command with another --num-episodes goes on, too.
        jobs = [
            replace(side, name=f"{side.name}-{first:06d}-{end:06d}", first_episode=first, num_episodes=end - first)
            for side in sides
        ]
        out = run_jobs(flags, jobs)
        flags = replace(flags, out=str(out), rerun_failed=False)
        a, b = ({episode["index"]: episode for episode in iterate_episodes(out, job)} for job in jobs)
        with refusing(out, "pass another --out"):
            pairs += [(a[index], b[index]) for index in range(first, end)]
        verdict, first = judge(pairs, config.return_range), end
        if verdict.sure or end == config.num_episodes:
            a, b = (side.policy for side in sides)
            return Comparison(task=config.task, a=a, b=b, verdict=verdict)
        on_round(verdict)


def _job_of(side: str, policy: str, flags: EvaluateConfig, overrides: Overrides) -> Job:
    """Return a job of one policy; its episodes are those of the rounds."""
    jobs = find_jobs(replace(flags, checkpoint=(policy,), num_episodes=None), overrides, side)
    if len(jobs) > 1:
        raise UsageError(f"{side} is '{policy}', which names {len(jobs)} policies: pass one of them.")
    return jobs[0]
