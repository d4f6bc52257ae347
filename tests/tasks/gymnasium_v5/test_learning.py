"""The defaults learn from Gymnasium's rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commands import TRAIN, run

from shoal.config import PlayConfig
from shoal.play import play
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.spawn
@pytest.mark.slow
def test_a_pendulum_is_kept_upright_after_thirty_iterations(tmp_path: Path) -> None:
    words = ("InvertedPendulum-v5", "--gpu-ids", "None", "--seed", "1", "--max-iterations", "30", "--logger", "none")
    trained = run((*TRAIN, *words), tmp_path)
    assert trained.code == 0, trained.stderr
    spec = registered()[words[0]]
    logs = str(trained.log_root)
    returns = play(
        PlayConfig(task=spec.name, gpu_ids=("None",), log_root=logs, episodes=20, env=spec.env, agent=spec.agent)
    ).returns
    # It falls within ten steps or so at the beginning, and 1,000 is all that can be had.
    assert sum(returns) / len(returns) > 900.0
