"""Settings of the cart-pole tasks."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shoal.errors import UsageError
from shoal.tasks.cartpole.config import BalanceConfig, CartpoleConfig, SwingupConfig

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_the_defaults_give_fifty_actions_a_second_for_ten_seconds() -> None:
    for config in (BalanceConfig(), SwingupConfig()):
        assert config.physics_dt * config.decimation == pytest.approx(0.02)
        assert config.episode_length_s == 10.0


def impossible() -> Iterator[tuple[CartpoleConfig, str, float]]:
    """Yield what no configuration may be, field by field."""
    positive = {"episode_length_s", "cart_mass", "pole_mass", "pole_half_length", "gravity", "force_limit"}
    positive |= {"rail_half_length", "physics_dt", "cart_speed_scale", "pole_speed_scale", "decimation"}
    for name in sorted(positive):
        yield CartpoleConfig(), name, 0
    for name in ("position", "angle", "cart_speed", "pole_speed"):
        yield CartpoleConfig(), f"reset_{name}_range", -0.1
    yield BalanceConfig(), "fallen_angle", 0.0
    yield SwingupConfig(), "centred_margin", 0.0
    yield SwingupConfig(), "slow_margin", -1.0


@pytest.mark.parametrize(("config", "name", "value"), list(impossible()))
def test_an_impossible_value_is_refused_by_its_flag_s_name(config: CartpoleConfig, name: str, value: float) -> None:
    with pytest.raises(UsageError, match=rf"env\.{name} is {value!r}, but must"):
        dataclasses.replace(config, **{name: value})


def test_settings_are_read_without_any_simulator() -> None:
    code = "import sys, shoal.tasks.cartpole.config; print({'warp', 'torch', 'mujoco', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
