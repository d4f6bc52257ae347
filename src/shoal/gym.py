"""Shoal's tasks in Gymnasium: `import shoal.gym`, then `gymnasium.make_vec("shoal/Cartpole-Swingup", num_envs=64)`.

`gymnasium.make_vec("shoal.gym:shoal/Cartpole-Swingup")` does both. Any task that `shoal.make` takes is
`gymnasium.make_vec("shoal/Task", task="path/to/file.py:Class")`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium

from shoal.api import make
from shoal.checks.optional import GL_VARIABLE, choose_gl
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from shoal.envs.gymnasium_vector import GymnasiumVectorEnv


def make_vec(  # noqa: PLR0913  By name.
    task: str,
    num_envs: int = 1,
    *,
    device: Any = None,  # noqa: ANN401  As for `make`.
    seed: int = 1,
    env: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    **settings: Any,  # noqa: ANN401
) -> GymnasiumVectorEnv:
    """Build environments as for `shoal.make`; `settings` are those of `GymnasiumVectorEnv`."""
    if render_mode is not None:
        os.environ.setdefault(GL_VARIABLE, choose_gl(str(device or "cpu"), os.environ))
    built = make(task, num_envs, device, seed=seed, env=env)

    from shoal.envs.gymnasium_vector import GymnasiumVectorEnv

    return GymnasiumVectorEnv(built, render_mode=render_mode, **settings)


for _name in (*registered(), "Task"):
    _task = {} if _name == "Task" else {"task": _name}
    gymnasium.register(f"shoal/{_name}", vector_entry_point=f"{__name__}:make_vec", kwargs=_task)
