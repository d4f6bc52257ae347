"""A MuJoCo task that shows what the engines do: a ball that bounces on a plane, beside a cart that a motor pushes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mujoco
import warp as wp

from shoal.config import MujocoConfig
from shoal.sim.mujoco_task import MujocoTask

MODEL = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  {size}
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="cart" pos="0 1 0.5">
      <joint name="rail" type="slide" axis="1 0 0" damping="0.5"/>
      <geom type="box" size="0.1 0.1 0.1" mass="2"/>
      <site name="tip" pos="0.1 0 0"/>
    </body>
    <body name="ball" pos="0 0 0.4">
      <freejoint/>
      <geom name="ball" size="0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="rail" gear="10" ctrlrange="-1 1"/></actuator>
  <sensor><velocimeter site="tip"/></sensor>
</mujoco>
"""


@dataclass(frozen=True, kw_only=True)
class BouncingConfig(MujocoConfig):
    """Nothing but what every such task has."""

    memory: str = ""
    """The memory that the model gives MuJoCo."""
    runaway: float = 0.0
    """How hard the cart of environment 1 is pushed the way it moves [N/(m/s)]: with 60 it is lost within 60 steps."""
    runaway_seed: int = 42
    """The seed of the rank where that happens."""
    height_weight: float = 1.0
    """Weight of the ball's height."""


@wp.kernel(enable_backward=False)
def push(actions: wp.array2d[wp.float32], ctrl: wp.array2d[wp.float32]) -> None:
    env = wp.tid()
    ctrl[env, 0] = actions[env, 0]


@wp.kernel(enable_backward=False)
def measure(xpos: wp.array2d[wp.vec3], ball: wp.int32, terms: wp.array2d[wp.float32]) -> None:
    env = wp.tid()
    terms[env, 0] = xpos[env, ball][2]


@wp.kernel(enable_backward=False)
def drop(done: wp.array[wp.bool], rng: wp.array[wp.uint32], qpos: wp.array2d[wp.float32]) -> None:
    env = wp.tid()
    if done[env]:
        random = rng[env]
        qpos[env, 3] = 0.2 + 0.3 * wp.randf(random)
        rng[env] = random


@wp.kernel(enable_backward=False)
def shove(wanted: wp.array[wp.bool], qvel: wp.array2d[wp.float32], moved: wp.array[wp.bool]) -> None:
    env = wp.tid()
    if wanted[env]:
        qvel[env, 0] = 3.0
        moved[env] = True
        wanted[env] = False


@wp.kernel(enable_backward=False)
def load(rng: wp.array[wp.uint32], cart: wp.int32, body_mass: wp.array2d[wp.float32]) -> None:
    env = wp.tid()
    random = rng[env]
    body_mass[env, cart] = 1.0 + wp.randf(random)
    rng[env] = random


@wp.kernel(enable_backward=False)
def run_away(runaway: wp.float32, dof_damping: wp.array2d[wp.float32]) -> None:
    dof_damping[1, 0] = -runaway


@wp.kernel(enable_backward=False)
def show(
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    xpos: wp.array2d[wp.vec3],
    cart: wp.int32,
    observation: wp.array2d[wp.float32],
) -> None:
    env = wp.tid()
    observation[env, 0] = qpos[env, 0]
    observation[env, 1] = qpos[env, 3]
    observation[env, 2] = qvel[env, 0]
    observation[env, 3] = xpos[env, cart][0]


class BouncingTask(MujocoTask[BouncingConfig]):
    """Nothing is to be learned here."""

    config = BouncingConfig(episode_length_s=1.0)
    observations: ClassVar = {"policy": 4}
    num_actions = 1
    reward_terms = ("height",)

    @classmethod
    def build_model(cls, config: BouncingConfig) -> mujoco.MjModel:
        """Return ball and cart."""
        size = f'<size memory="{config.memory}"/>' if config.memory else ""
        return mujoco.MjModel.from_xml_string(MODEL.format(size=size))

    def allocate(self) -> None:
        """Ask for fields."""
        self.xpos = self.data("xpos")
        self.sensordata = self.data("sensordata")
        self.body_mass = self.parameter("body_mass")
        self.dof_damping = self.parameter("dof_damping")
        self.cart, self.ball = (self.model.body(name).id for name in ("cart", "ball"))
        self.wanted = self.array("wanted", dtype=wp.bool)
        """Where the cart is to be shoved."""

    def apply_actions(self) -> None:
        """Push the cart."""
        self.launch(push, inputs=[self.actions], outputs=[self.ctrl])

    def compute_rewards(self) -> None:
        """Measure the ball's height."""
        self.launch(measure, inputs=[self.xpos, self.ball], outputs=[self.terms])

    def reset_state(self) -> None:
        """Drop the ball from some height."""
        self.launch(drop, inputs=[self.done], outputs=[self.rng, self.qpos])

    def interval_events(self) -> None:
        """Shove the cart where that is wanted."""
        self.launch(shove, inputs=[self.wanted], outputs=[self.qvel, self.moved])

    def randomize(self) -> None:
        """Load the cart."""
        self.launch(load, inputs=[self.rng, self.cart], outputs=[self.body_mass])
        if self.config.runaway and self.seed == self.config.runaway_seed:
            self.launch(run_away, inputs=[self.config.runaway], outputs=[self.dof_damping], dim=1)

    def observe(self) -> None:
        """Show positions and the cart's speed."""
        self.launch(show, inputs=[self.qpos, self.qvel, self.xpos, self.cart], outputs=[self.obs["policy"]])


class CrampedTask(BouncingTask):
    """The same with less room in MuJoCo Warp than it needs."""

    capacities = (1, 1)
