"""Checks that `train` makes before it starts a worker.

Requirements are lower bounds (`shoal.plan.sizes`): what is refused here could not have worked, and what may or may not
work is a note. `shoal doctor` makes the same checks, and more.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from shoal.checks.film import refuse_no_film
from shoal.checks.findings import Finding
from shoal.checks.gpu import check_driver, check_gpu
from shoal.checks.launch import check_launch
from shoal.checks.storage import (
    SHARED_MEMORY,
    check_disk,
    check_kernel_cache,
    check_memory,
    check_run_files,
    check_shared_memory,
    check_temporary,
)
from shoal.checks.wandb import refuse_no_wandb
from shoal.errors import UsageError
from shoal.machine import gpu_health, host
from shoal.machine.cuda_versions import read_built_with
from shoal.machine.gpus import Gpu, VisibleGpus
from shoal.plan.launch import LaunchPlan
from shoal.plan.rundir import experiment_dir
from shoal.plan.sizes import FLOAT, checkpoints_to_come, experience_bytes_per_env
from shoal.plan.training import TrainPlan


def preflight(plan: TrainPlan, environ: Mapping[str, str], gpus: VisibleGpus) -> tuple[str, ...]:
    """Check that the machine can carry out a plan; return notes. With `--dry-run` no process is started for it."""
    if plan.config.logger == "wandb":
        refuse_no_wandb(environ, writes=plan.leads and not plan.config.dry_run)
    if plan.config.video and not plan.config.dry_run and not plan.is_remote and plan.leads:
        refuse_no_film(plan.devices[0], environ)
    return notes_of(findings_of(plan, environ, gpus))


def notes_of(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the notes among findings.

    Raises:
        UsageError: One is a problem.
    """
    notes: list[str] = []
    for finding in findings:
        if finding.level == "problem":
            raise UsageError(finding.sentence)
        if finding.level == "note":
            notes.append(finding.sentence)
    return tuple(notes)


def findings_of(plan: TrainPlan, environ: Mapping[str, str], gpus: VisibleGpus) -> Iterator[Finding]:
    """Check everything that a training needs of this machine, cheapest first."""
    yield from check_run_files(plan.continued)
    yield from launch_findings(plan, environ)
    where = plan.continued.path if plan.continued else experiment_dir(plan.config.log_root, plan.spec.experiment)
    wanted, exactly = _checkpoint_size(plan)
    yield check_disk(host.nearest_existing(where), host.disk(where), wanted, checkpoints_to_come(plan), exactly=exactly)
    if plan.is_remote:
        return  # The workers are not on this machine, or not children of this process.
    on_cpu = plan.devices[0] == "cpu"
    experience = plan.num_envs * experience_bytes_per_env(plan) if on_cpu else 0
    yield check_memory(host.memory(), len(plan.devices), experience)
    driver = None if on_cpu else gpu_health.read_driver()
    if driver is not None:
        yield check_driver(driver, read_built_with())
    if plan.backend == "nccl":
        yield check_shared_memory(host.disk(SHARED_MEMORY), len(plan.devices))
    own = plan.devices if plan.rank is None else (plan.devices[plan.rank.local_rank],)
    for state in gpu_health.read_gpu_states(wanted_gpus(own, gpus)):
        workers = Counter(own)[f"cuda:{state.index}"]
        yield from check_gpu(state, workers, plan, sure=not gpus.order_is_uncertain)


def launch_findings(plan: LaunchPlan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check what the workers of any launch need of this machine."""
    yield check_kernel_cache(host.kernel_cache(environ))
    yield check_temporary(environ)
    yield from check_launch(plan, environ)


def wanted_gpus(devices: Sequence[str], gpus: VisibleGpus) -> list[Gpu]:
    """Return the visible GPUs that are among `devices`."""
    return [gpu for gpu in gpus if f"cuda:{gpu.index}" in devices]


def _checkpoint_size(plan: TrainPlan) -> tuple[int, bool]:
    """Return the size of a checkpoint, and whether it is known: a resumed run has one already."""
    if plan.continued is not None and plan.start is not None:
        try:
            files = [path for path in Path(plan.start.model).parent.iterdir() if path.is_file()]
            return sum(path.stat().st_size for path in files), True
        except OSError:
            pass
    return FLOAT * plan.config.agent.checkpoint_floats, False
