"""Compare depth images a second with MuJoCo's rays, and with mjlab's camera, on the quadruped's tasks.

    pip install --target DIR --no-deps mjlab==1.6.0
    python docs/compare_cameras.py DIR [--task rough] [--size 16 32 64] [--num-envs 16 64 256]

All draw the same poses on one thread, and take turns. It prints medians of the images a second of CPU time, and the
share of pixels whose depths are Shoal's to 0.1 mm. Without DIR mjlab is left out.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from compare_mjlab_terms import import_mjlab

from shoal import mdp
from shoal.envs.vec_env import build_vec_env
from shoal.sim.graphs import run_all
from shoal.tasks import registry
from shoal.tasks.quadruped.config import DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = {"flat": "Quadruped-Velocity-Flat", "rough": "Quadruped-Velocity-Rough"}
TURNS = 9
EQUAL = 1e-4
"""[m]."""
EYE = DEPTH.terms("sensors")["front"]


def look(task: str, size: int, num_envs: int) -> tuple[Any, np.ndarray]:
    """Return a task with a camera after some steps, and its depths [m]. Shape (num_envs, size * size)."""
    spec = registry.resolve(task)
    config: Any = spec.env
    config = config.change(
        engine="mjwarp",
        fresh_observations=True,  # Of the poses after the step, which the others compute of its positions.
        sensors={"eye": replace(EYE, width=size, height=size, update_period=0.0)},
        observations={"eye": {"depth": mdp.Obs("camera_depth", sensor_name="eye", cutoff_distance=100.0)}},
    )
    env: Any = build_vec_env(spec, config, num_envs=num_envs, device="cpu", seed=0)
    for _ in range(10):
        env.step(torch.rand(num_envs, env.num_actions) * 2 - 1)
    observations = env.get_observations()
    return env.task, observations["eye"].reshape(num_envs, -1).numpy() * 100.0


def mujoco_rays(task: Any, size: int) -> tuple[Callable[[], None], np.ndarray]:  # noqa: ANN401  Of any configuration.
    """Return a loop of `mj_multiRay` over environments, and where it writes depths [m], -1 or less for nothing."""
    model = task.model
    poses = [mujoco.MjData(model) for _ in task.qpos.numpy()]
    for data, qpos in zip(poses, task.qpos.numpy(), strict=True):
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
    y, x = (1 - (np.mgrid[:size, :size] + 0.5) / size * 2) * np.tan(np.deg2rad(EYE.fovy) / 2)
    rays = np.stack([-x, y, -np.ones_like(x)], axis=-1).reshape(-1, 3)
    lengths = np.linalg.norm(rays, axis=1)
    depths, geoms = np.empty((len(poses), size**2)), np.empty(size**2, np.int32)
    groups = np.array([1, 1, 1, 0, 0, 0], np.uint8)

    def trace() -> None:
        for at, data in enumerate(poses):
            camera = data.camera("eye")
            world = (rays @ camera.xmat.reshape(3, 3).T / lengths[:, None]).ravel()
            mujoco.mj_multiRay(model, data, camera.xpos, world, groups, 1, -1, geoms, depths[at], None, size**2, 1e10)
        np.divide(depths, lengths, out=depths)

    return trace, depths


def mjlab_camera(directory: str, task: Any, size: int) -> tuple[Callable[[], None], np.ndarray]:  # noqa: ANN401  As above.
    """Return mjlab's sensor of the same camera, as its `Simulation.sense` draws it, and its depths [m]."""
    cameras, contexts = import_mjlab(directory, "mjlab.sensor.camera_sensor", "mjlab.sensor.sensor_context")
    data = mjw.make_data(task.model, nworld=task.num_envs)
    data.qpos.assign(task.qpos.numpy())
    model = mjw.put_model(task.model)
    mjw.forward(model, data)
    config = cameras.CameraSensorCfg(name="eye", camera_name="eye", width=size, height=size, data_types=("depth",))
    sensor = config.build()
    sensor.initialize(task.model, model, data, "cpu")
    context = contexts.SensorContext(task.model, model, data, [sensor], [], "cpu")

    def sense() -> None:
        mjw.refit_bvh(model, data, context.render_context)
        mjw.render(model, data, context.render_context)

    sense()
    return sense, context.get_depth(sensor.camera_idx).reshape(task.num_envs, -1).numpy()


def main() -> None:
    """Print a line for each task, size and number of environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mjlab", nargs="?", help="the directory with mjlab's package")
    parser.add_argument("--task", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--size", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--num-envs", type=int, nargs="+", default=[16, 64, 256])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wp.config.log_level = wp.LOG_WARNING
    for name in arguments.task:
        for size in arguments.size:
            for num_envs in arguments.num_envs:
                task, depths = look(TASKS[name], size, num_envs)
                ways: dict[str, Callable[[], object]] = {"Shoal": partial(run_all, task.tracers)}
                ways["mj_multiRay"], theirs = mujoco_rays(task, size)
                others = {"mj_multiRay": theirs}
                if arguments.mjlab:
                    ways["mjlab"], others["mjlab"] = mjlab_camera(arguments.mjlab, task, size)
                spent: dict[str, list[float]] = {way: [] for way in ways}
                for _ in range(1 + TURNS):
                    for way, draw in ways.items():
                        started = time.process_time()
                        draw()
                        spent[way].append(time.process_time() - started)
                rates = {way: f"{num_envs / np.median(times[1:]):,.0f}" for way, times in spent.items()}
                equal = {way: f"{np.mean(np.abs(each - depths) < EQUAL):.2%}" for way, each in others.items()}
                scene = f"{name}, {size} x {size}, {num_envs} environments"
                print(f"{scene}: {rates} images/s; equal: {equal}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
