"""Random tasks from the library of terms, on random robots: equal on both engines, or refused in a sentence."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.random_tasks import random_task

from shoal.errors import ShoalError

STEPS = 4
EVERYDAY = (3, 5, 17, 35, 46, 18, 94, 148, 168)
"""Robots with a fixed and with a free base, of two sizes, for each of which MuJoCo Warp compiles kernels of its own."""
A_SENTENCE = re.compile(r"[^\n]{20,700}[.?]")


def built(made: Any, config: Any, engine: str, seed: int) -> Any:
    """Return a task, or its refusal."""
    try:
        return made(replace(config, engine=engine), num_envs=3, device="cpu", seed=seed)
    except ShoalError as error:
        return str(error)


def without(config: Any, refusal: str) -> Any:
    """Return a configuration without the term that a refusal names; None where it names none."""
    named = re.match(r"(?:observations\.(\w+)|(\w+))\.(\w+)", refusal)
    group, kind, name = named.groups() if named else ("", "", "")
    if not group and kind not in config.kinds:
        return None
    return config.change(**({"observations": {group: {name: None}}} if group else {kind: {name: None}}))


def run(task: Any, seed: int) -> list[np.ndarray]:
    """Return observations, rewards and ends of some steps with random actions."""
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for _ in range(STEPS):
        task.actions.assign(rng.uniform(-1.0, 1.0, task.actions.shape).astype(np.float32))
        task.step()
        found += [each.numpy().copy() for each in (*task.obs.values(), task.reward, task.done)]
    return found


def check(seed: int) -> str:
    """Build a random task without the terms that are refused, and compare the engines; return why, if it has none."""
    made: Any = random_task(seed)
    config = made.config
    while True:
        native, warp = (built(made, config, engine, seed) for engine in ("mujoco", "mjwarp"))
        refusal = warp if isinstance(warp, str) else native
        if not isinstance(refusal, str):
            break
        assert A_SENTENCE.fullmatch(refusal), refusal
        assert native == warp or "MuJoCo Warp" in refusal, (native, warp)
        config = without(config, refusal)
        if config is None:
            return refusal
    for one, other in zip(run(native, seed), run(warp, seed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    return ""


@pytest.mark.parametrize("seed", EVERYDAY)
def test_a_random_task_is_equal_on_both_engines_or_refused_in_a_sentence(seed: int) -> None:
    check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_five_hundred_random_tasks_are_equal_on_both_engines_or_refused(first: int) -> None:
    refused = sum(bool(check(seed)) for seed in range(first, first + 50))
    assert refused < 25
