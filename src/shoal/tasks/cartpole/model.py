"""MuJoCo model of the cart-pole, and its speed in MuJoCo's C engine for `shoal bench`.

The model is made from a configuration, with masses and inertias written out, so that it obeys the equations of
`shoal.tasks.cartpole.kernels` exactly.
"""

import time
from dataclasses import asdict

import mujoco
import numpy as np
from mujoco.batch import Batch

from shoal.sim.render.surroundings import add_surroundings
from shoal.tasks.cartpole.config import CartpoleConfig

_MODEL = """
<mujoco model="cartpole">
  <!-- There is nothing to collide with, to hold or to damp: the engine need not look. -->
  <option timestep="{physics_dt}" gravity="0 0 -{gravity}" integrator="Euler" jacobian="dense">
    <flag constraint="disable" contact="disable" eulerdamp="disable" spring="disable" damper="disable"/>
  </option>
  <worldbody>
    <body name="cart">
      <joint name="x" type="slide" axis="1 0 0"/>
      <!-- The cart does not turn: any inertia serves. -->
      <inertial pos="0 0 0" mass="{cart_mass}" diaginertia="1 1 1"/>
      <body name="pole">
        <joint name="theta" type="hinge" axis="0 1 0"/>
        <inertial pos="0 0 {pole_half_length}" mass="{pole_mass}" diaginertia="{inertia} {inertia} {thin}"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="x"/>
  </actuator>
</mujoco>
"""


def model_xml(config: CartpoleConfig) -> str:
    """Return the cart-pole of `config` as MJCF; its control is the force on the cart in newtons."""
    inertia = config.pole_mass * config.pole_half_length**2 / 3  # Of a thin rod about its middle.
    thin = inertia / 2  # About its own axis, around which it never turns; MuJoCo wants it above zero.
    return _MODEL.format(**asdict(config), inertia=inertia, thin=thin)


def scene(config: CartpoleConfig) -> mujoco.MjModel:
    """Return the same cart-pole with shapes, a rail and a light, for films and viewers."""
    spec = mujoco.MjSpec.from_string(model_xml(config))
    shapes, rail = mujoco.mjtGeom, config.rail_half_length
    grey, blue, orange = (0.45, 0.47, 0.5, 1.0), (0.2, 0.35, 0.6, 1.0), (0.9, 0.5, 0.2, 1.0)
    top = (0.0, 0.0, 2.0 * config.pole_half_length)
    world, cart, pole = spec.worldbody, spec.body("cart"), spec.body("pole")
    world.add_light(pos=(0.0, -2.0, 4.0), dir=(0.0, 0.4, -1.0), type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
    world.add_camera(name="film", pos=(0.0, -2.2 * rail, 0.0), xyaxes=(1.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    world.add_geom(type=shapes.mjGEOM_CAPSULE, fromto=(-rail, 0.0, 0.0, rail, 0.0, 0.0), size=(0.02, 0, 0), rgba=grey)
    cart.add_geom(type=shapes.mjGEOM_BOX, size=(0.15, 0.08, 0.06), rgba=blue)
    pole.add_geom(type=shapes.mjGEOM_CAPSULE, fromto=(0.0, 0.0, 0.0, *top), size=(0.03, 0, 0), rgba=orange)
    add_surroundings(spec)
    return spec.compile()


def reference_rate(config: CartpoleConfig, num_envs: int, seconds: float) -> float:
    """Return the rate of environment steps in MuJoCo's C engine, on the calling thread, with random actions [1/s]."""
    batch = Batch(mujoco.MjModel.from_xml_string(model_xml(config)), nsim=num_envs, nthread=1)
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (num_envs, 1))
    forces = batch.bind("ctrl")
    steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        np.multiply(actions, config.force_limit, out=forces)
        batch.step(nstep=config.decimation)
        steps += 1
    return steps * num_envs / elapsed
