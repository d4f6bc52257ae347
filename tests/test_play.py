"""The story of playing: what is refused before a policy is looked for."""

from __future__ import annotations

import pytest

from shoal.config import PlayConfig
from shoal.errors import UsageError
from shoal.play import play


@pytest.mark.parametrize("gpu_ids", [("0", "1"), ("0,1",), ("all",)])
def test_a_policy_plays_on_one_device(gpu_ids: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"plays on one device, but --gpu-ids .* may name several"):
        play(PlayConfig(task="Cartpole-Swingup", gpu_ids=gpu_ids))
