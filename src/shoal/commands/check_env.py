"""The command `shoal check-env`: hold environments against the contract."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shoal.config import CheckEnvConfig
from shoal.machine.gpus import visible_gpus
from shoal.plan.devices import one_device
from shoal.tasks import registry

if TYPE_CHECKING:
    from shoal.envs.contract import EnvReport


def check(config: CheckEnvConfig) -> EnvReport:
    """Build environments of a task, and check them.

    Raises:
        UsageError: There is no such task, or no such device.
    """
    spec = registry.resolve(config.task)
    spec.check_env(config.env)
    device = one_device(config.gpu_ids, visible_gpus(os.environ))

    from shoal.envs.contract import check_env

    return check_env(config, spec, device)
