"""A cart-pole that keeps what each rank was asked to do, for tests of the ranks' seeds.

`train tests/support/recorded_task.py:Recorded` writes `first_step_<seed>.json` into SHOAL_TEST_RECORDS.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.config import ModelConfig, RslRlConfig
from shoal.tasks.cartpole.config import BalanceConfig
from shoal.tasks.cartpole.task import Balance

if TYPE_CHECKING:
    from typing import Any

RECORDS_VARIABLE = "SHOAL_TEST_RECORDS"


class Recorded(Balance):
    """Writes the first observations and actions down."""

    config = BalanceConfig()
    agent = RslRlConfig(
        num_steps_per_env=4,
        save_interval=1,
        actor=RslRlConfig().actor,
        critic=ModelConfig(hidden_dims=(8,)),
    )
    num_envs = 4
    max_iterations = 2

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.recorded = False
        super().__init__(*arguments, **named)

    def step(self) -> None:
        if not self.recorded:
            record = {
                "observations": self.obs["policy"].numpy().tolist(),
                "actions": self.actions.numpy().tolist(),
            }
            path = Path(os.environ[RECORDS_VARIABLE]) / f"first_step_{self.seed}.json"
            path.write_text(json.dumps(record), encoding="utf-8")
            self.recorded = True
        super().step()
