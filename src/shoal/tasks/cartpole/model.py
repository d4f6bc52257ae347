"""MuJoCo model of the cart-pole, and its speed in MuJoCo's C engine for `shoal bench`.

The model is made from a configuration, with masses and inertias written out, so that it obeys the equations of
`shoal.tasks.cartpole.kernels` exactly.
"""

import time
from pathlib import Path

import mujoco
import numpy as np
from mujoco.batch import Batch

from shoal.sim.render.surroundings import add_surroundings
from shoal.tasks.cartpole.config import CartpoleConfig, PlantConfig

MODEL = Path(__file__).with_name("cartpole.xml")


def spec_of(config: PlantConfig) -> mujoco.MjSpec:
    """Return the cart-pole of `config`, without shapes; its control is the force on the cart in newtons."""
    spec = mujoco.MjSpec.from_file(str(MODEL))
    spec.option.timestep, spec.option.gravity = config.physics_dt, (0.0, 0.0, -config.gravity)
    inertia = config.pole_mass * config.pole_half_length**2 / 3  # Of a thin rod about its middle.
    thin = inertia / 2  # About its own axis, around which it never turns; MuJoCo wants it above zero.
    cart, pole = spec.body("cart"), spec.body("pole")
    cart.mass, pole.mass = config.cart_mass, config.pole_mass
    pole.ipos, pole.inertia = (0.0, 0.0, config.pole_half_length), (inertia, inertia, thin)
    return spec


def shapes_of(config: PlantConfig, pole_radius: float = 0.03) -> mujoco.MjSpec:
    """Return the same cart-pole with shapes that collide with nothing, a rail and a light; the radius is in metres."""
    spec = spec_of(config)
    spec.default.geom.contype = spec.default.geom.conaffinity = 0
    shapes, rail = mujoco.mjtGeom, config.rail_half_length
    grey, blue, orange = (0.45, 0.47, 0.5, 1.0), (0.2, 0.35, 0.6, 1.0), (0.9, 0.5, 0.2, 1.0)
    top = (0.0, 0.0, 2.0 * config.pole_half_length)
    world, cart, pole = spec.worldbody, spec.body("cart"), spec.body("pole")
    world.add_light(pos=(0.0, -2.0, 4.0), dir=(0.0, 0.4, -1.0), type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
    world.add_camera(name="video", pos=(0.0, -2.2 * rail, 0.0), xyaxes=(1.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    world.add_geom(type=shapes.mjGEOM_CAPSULE, fromto=(-rail, 0.0, 0.0, rail, 0.0, 0.0), size=(0.02, 0, 0), rgba=grey)
    cart.add_geom(type=shapes.mjGEOM_BOX, size=(0.15, 0.08, 0.06), rgba=blue)
    pole.add_geom(type=shapes.mjGEOM_CAPSULE, fromto=(0.0, 0.0, 0.0, *top), size=(pole_radius, 0, 0), rgba=orange)
    return spec


def scene(config: PlantConfig) -> mujoco.MjModel:
    """Return the cart-pole with shapes, for videos and viewers."""
    spec = shapes_of(config)
    add_surroundings(spec)
    return spec.compile()


def reference_rate(config: CartpoleConfig, num_envs: int, seconds: float) -> float:
    """Return the rate of environment steps in MuJoCo's C engine, on the calling thread, with random actions [1/s]."""
    batch = Batch(spec_of(config).compile(), nsim=num_envs, nthread=1)
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (num_envs, 1))
    forces = batch.bind("ctrl")
    steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        np.multiply(actions, config.force_limit, out=forces)
        batch.step(nstep=config.decimation)
        steps += 1
    return steps * num_envs / elapsed
