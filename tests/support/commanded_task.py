"""A kernel task with one command: a ball that slides as fast as it is told, whatever its policy does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mujoco
import warp as wp

from shoal.config.env import EnvConfig
from shoal.sim.kernel_task import KernelTask
from shoal.sim.task import CommandRange

SCENE = """
<mujoco>
  <worldbody>
    <geom type="plane" size="0 0 1" pos="0 0 -0.1" rgba="0.9 0.9 0.9 1"/>
    <body>
      <joint type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.1" mass="1" rgba="0.9 0.1 0.1 1"/>
    </body>
  </worldbody>
</mujoco>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingConfig(EnvConfig):
    """A hundred steps of 0.1 s."""

    episode_length_s: float = 10.0
    speed_weight: float = 10.0


@wp.kernel(enable_backward=False)
def slide(commands: wp.array2d[wp.float32], x: wp.array2d[wp.float32], terms: wp.array2d[wp.float32]) -> None:
    """Slide for a tenth of a second; the term is the speed."""
    env = wp.tid()
    x[env, 0] = x[env, 0] + 0.1 * commands[env, 0]
    terms[env, 0] = commands[env, 0]


@wp.kernel(enable_backward=False)
def begin(
    done: wp.array[wp.bool],
    rng: wp.array[wp.uint32],
    commands: wp.array2d[wp.float32],
    x: wp.array2d[wp.float32],
) -> None:
    """Begin in the middle, with a speed between 0 and 1 m/s."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    commands[env, 0] = wp.randf(random)
    x[env, 0] = 0.0
    rng[env] = random


@wp.kernel(enable_backward=False)
def show(commands: wp.array2d[wp.float32], observation: wp.array2d[wp.float32]) -> None:
    """Show the command."""
    env = wp.tid()
    observation[env, 0] = commands[env, 0]


class Sliding(KernelTask[SlidingConfig]):
    """A ball that slides as fast as it is told."""

    config = SlidingConfig()
    observations: ClassVar = {"policy": 1}
    num_actions = 1
    reward_terms = ("speed",)
    commands: ClassVar = {"speed": CommandRange(low=-2.0, high=2.0, unit="m/s")}

    @property
    def step_dt(self) -> float:
        return 0.1

    def allocate(self) -> None:
        self.x = self.array("x", 1)

    def simulate(self) -> None:
        self.launch(slide, inputs=[self.command_array], outputs=[self.x, self.terms])

    def reset(self) -> None:
        self.launch(begin, inputs=[self.done], outputs=[self.rng, self.command_array, self.x])

    def observe(self) -> None:
        self.launch(show, inputs=[self.command_array], outputs=[self.obs["policy"]])

    def scene(self) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(SCENE)

    def positions(self) -> wp.array:
        return self.x


class Steered(Sliding):
    """One with the commands of a robot that walks; the first one is its speed."""

    commands: ClassVar = {
        "forward": CommandRange(low=-2.0, high=2.0, unit="m/s"),
        "left": CommandRange(low=-1.0, high=1.0, unit="m/s"),
        "turn": CommandRange(low=-1.0, high=1.0, unit="rad/s"),
    }
