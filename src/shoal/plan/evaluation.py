"""The plan of an evaluation: its jobs, and where its workers run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config import LaunchConfig
from shoal.config.evaluate import EvaluateConfig
from shoal.config.plain import shared_fields
from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.plan.job import Job
from shoal.plan.launch import LaunchPlan, plan_launch, refuse_unwritable
from shoal.plan.nodes import Nodes
from shoal.plan.rundir import RunDir
from shoal.plan.spec import EvaluateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatePlan(LaunchPlan):
    """What one `evaluate` command will do."""

    config: EvaluateConfig
    jobs: tuple[Job, ...]

    @property
    def num_parts(self) -> int:
        """Parts of all jobs."""
        return sum(len(job.parts()) for job in self.jobs)

    def worker_spec(self, run: RunDir, log_dir: Path | None) -> EvaluateSpec:
        """Return what the workers need to know, with the results in `run`."""
        config = self.config
        return EvaluateSpec(
            **self.node_fields(run, log_dir),
            config=LaunchConfig(**shared_fields(LaunchConfig, config)),
            # The jobs need no process group. Ranks that a launcher started have one, which their policies may use.
            backend=self.backend if self.rank is not None else None,
            jobs=self.jobs,
            assignment=config.assignment,
            fail_fast=config.fail_fast,
            policy_device=config.policy_device,
            policy_device_id=config.policy_device_id,
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as plain values, for `--dry-run`."""
        return {
            "launch_mode": self.launch_mode,
            "devices": list(self.devices),
            "world_size": self.world_size,
            "assignment": self.config.assignment,
            "jobs": [f"{job.name} ({len(job.parts())} parts)" for job in self.jobs],
        }


def plan_evaluation(
    config: EvaluateConfig,
    jobs: Sequence[Job],
    environ: Mapping[str, str],
    gpus: VisibleGpus,
    probe_hosts: Callable[[], Nodes] | None = None,
) -> EvaluatePlan:
    """Decide where the workers of these jobs run."""
    launch = plan_launch(config, sorted({job.task for job in jobs}), environ, gpus, probe_hosts)
    apart = next((node.host for node in launch.nodes if not node.shares_runs), None)
    if apart is not None:
        raise UsageError(
            f"Host {apart} does not see --log-root {config.log_root}, where workers take their jobs from: pass "
            "--log-root with a directory that all machines share."
        )
    plan = EvaluatePlan(**launch.shared(config=config), jobs=tuple(jobs))
    refuse_unwritable("--out", Path(config.out or config.log_root))
    plan.refuse_unwritable_logs(environ)
    return plan
