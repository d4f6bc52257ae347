"""A MuJoCo task that shows what the engines do: a ball that bounces on a plane, beside a cart that a motor pushes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import warp as wp

from shoal.mdp.annotations import BodyId
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.random import uniform
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Event, Obs, Reward

if TYPE_CHECKING:
    from collections.abc import Mapping

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
  <actuator><motor joint="rail" name="push" gear="10" ctrlrange="-1 1"/></actuator>
  <sensor><velocimeter site="tip"/></sensor>
</mujoco>
"""


@dataclass(frozen=True, kw_only=True)
class BouncingConfig(TermsConfig):
    """Nothing but what every such task has."""

    memory: str = ""
    """The memory that the model gives MuJoCo."""
    runaway: float = 0.0
    """How hard the cart of environment 1 is pushed the way it moves [N/(m/s)]: with 60 it is lost within 60 steps."""
    runaway_seed: int = 42
    """The seed of the rank where that happens."""


@wp.func
def height(state: Any, env: int, body: BodyId) -> float:
    return state.xpos[env, body][2]


@wp.func
def place(state: Any, env: int, body: BodyId) -> float:
    return state.xpos[env, body][0]


@wp.func
def ball_height(state: Any, env: int) -> float:
    return state.qpos[env, 3]


@wp.func
def drop(state: Any, env: int) -> None:
    state.qpos[env, 3] = uniform(state, env, 0.2, 0.5)


@wp.func
def shove(state: Any, env: int) -> None:
    state.qvel[env, 0] = 3.0


@wp.func
def load(state: Any, env: int, body: BodyId) -> None:
    state.body_mass[env, body] = uniform(state, env, 1.0, 2.0)


@wp.func
def run_away(state: Any, env: int) -> None:
    if env == 1 and state.runaway > 0.0:
        state.dof_damping[env, 0] = -state.runaway


NEVER = 1e6
TERMS: dict[str, Any] = {
    "episode_length_s": 1.0,
    "actions": {"push": Action("control", actuators="push", scale=1.0)},
    "observations": {
        "policy": {
            "rail": Obs("joint_pos", joints="rail"),
            "ball": Obs(ball_height),
            "speed": Obs("joint_vel_rel", joints="rail"),
            "cart": Obs(place, body="cart"),
        }
    },
    "rewards": {"height": Reward(height, weight=1.0, body="ball")},
    "events": {
        "drop": Event(drop, "reset"),
        "shove": Event(shove, "interval", interval=(NEVER, NEVER)),
        "load": Event(load, "startup", body="cart"),
        "run_away": Event(run_away, "startup"),
    },
}


class BouncingTask(TermsTask[BouncingConfig]):
    """Nothing is to be learned here."""

    config = task_config(BouncingConfig, **TERMS)

    @classmethod
    def build_model(cls, config: BouncingConfig) -> mujoco.MjModel:
        """Return ball and cart."""
        size = f'<size memory="{config.memory}"/>' if config.memory else ""
        return mujoco.MjModel.from_xml_string(MODEL.format(size=size))

    def own_state(self) -> Mapping[str, Any]:
        """Return how hard a cart is pushed; ask for fields that tests look at."""
        self.xpos, self.sensordata = self.data("xpos"), self.data("sensordata")
        self.body_mass, self.dof_damping = self.parameter("body_mass"), self.parameter("dof_damping")
        self.cart, self.ball = (self.model.body(name).id for name in ("cart", "ball"))
        return {"runaway": self.config.runaway if self.seed == self.config.runaway_seed else 0.0}

    def shove(self, *envs: int) -> None:
        """Let the cart of some environments be shoved after the next step."""
        left = self.arrays["event_left"].numpy()
        left[np.array(envs), 0] = 0.0
        self.arrays["event_left"].assign(left)


class CrampedTask(BouncingTask):
    """The same with less room in MuJoCo Warp than it needs."""

    capacities = (1, 1)
