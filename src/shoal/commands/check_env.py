"""The command `shoal check-env`: hold environments against the contract."""

import os
from collections.abc import Iterator

from shoal.config import CheckEnvConfig
from shoal.errors import ShoalError
from shoal.machine.gpus import visible_gpus
from shoal.plan.nodes import one_device
from shoal.tasks import registry


def check(config: CheckEnvConfig) -> Iterator[str]:
    """Step environments with random actions, and check that they are what a learner expects of them.

    Yields a line for each check, what is missing, and the speed.

    Raises:
        UsageError: There is no such task, or no such device.
        ShoalError: Checks failed.
    """
    spec = registry.resolve(config.task)
    spec.check_env(config.env)
    spec.check_build(config.env)
    device = one_device(config.gpu_ids, visible_gpus(os.environ))

    from shoal.envs.contract import check_env

    report = check_env(config, spec, device)
    for finding in report.findings:
        mark = "FAILED" if finding.fault is not None else "ok" if finding.offered else "-"
        yield f"{mark:6}  {finding.check}."
        if finding.fault is not None:
            yield f"        {finding.fault}"
    if report.missing:
        yield f"Not offered: {'; '.join(report.missing)}."
    yield (
        f"{report.steps_per_second:,.0f} steps per second of {config.num_envs} environments on {device}, "
        f"{report.episodes:,} episodes ended."
    )
    if report.failed:
        raise ShoalError(f"{len(report.failed)} of {len(report.findings)} checks of {config.task} failed.")
