"""`shoal new`: a project of one's own, with a robot, a task of terms, and a test."""

import importlib.util
import keyword
from collections.abc import Sequence
from pathlib import Path
from string import Template

from shoal.errors import UsageError, refusing_os_errors
from shoal.files import folder_of

_FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
requires-python = ">=3.11,<3.14"
dependencies = ["shoal"]

[project.entry-points."shoal.tasks"]
$name = "$name.task:SPEC"

[dependency-groups]
dev = ["pytest"]
""",
    "README.md": """\
# $name

A robot and its task for [Shoal](https://pypi.org/project/shoal): an arm that hangs down raises its tip.

Install the project once, with `uv sync` or `pip install -e .`; then, in its environment:

    train $task              # trains, into logs/$task
    pytest                   # tests the task
    play $task               # shows the newest policy

| file | contents |
| --- | --- |
| `src/$name/robot.xml` | the robot, in MJCF: replace it by yours |
| `src/$name/task.py` | actions, observations, rewards, events, and how they are trained |
| `tests/test_task.py` | what the task promises |
| `pyproject.toml` | the entry point `shoal.tasks`, by which Shoal finds the task |

Each parameter of a term is a flag, `train $task --env.rewards.height.weight 2.0`; `train $task --help env rewards`
lists them.
""",
    "src/$name/__init__.py": '''\
"""A robot and its task for Shoal."""
''',
    "src/$name/robot.xml": """\
<mujoco model="$name">
  <compiler angle="radian"/>
  <default>
    <joint axis="0 1 0" damping="0.2" armature="0.01"/>
    <geom type="capsule" size="0.02" density="500" contype="0" conaffinity="0" rgba="0.2 0.4 0.7 1"/>
    <position kp="8" kv="0.4" forcerange="-4 4"/>
  </default>
  <worldbody>
    <light pos="0 -1 2"/>
    <geom type="plane" size="1 1 0.1" rgba="0.8 0.8 0.8 1"/>
    <body name="upper" pos="0 0 0.8">
      <joint name="shoulder" range="-3.1 3.1"/>
      <geom fromto="0 0 0 0 0 -0.25"/>
      <body name="lower" pos="0 0 -0.25">
        <joint name="elbow" range="-2.6 2.6"/>
        <geom fromto="0 0 0 0 0 -0.25"/>
        <site name="tip" pos="0 0 -0.25" size="0.03" rgba="0.8 0.3 0.2 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder"/>
    <position name="elbow" joint="elbow"/>
  </actuator>
</mujoco>
""",
    "src/$name/task.py": '''\
"""An arm raises its tip. Terms named by strings come from Shoal, see docs/reference/terms.md there."""

from pathlib import Path
from typing import Any

import mujoco
import warp as wp

from shoal import TaskSpec, mdp, ppo


@wp.func
def site_height(state: Any, env: int, site: mdp.SiteId) -> float:
    """Return the height of a site [m]."""
    return state.site_xpos[env, site][2]


class Raise(mdp.TermsTask[mdp.TermsConfig]):
    """Raise the tip of an arm that hangs down."""

    config = mdp.task_config(
        mdp.TermsConfig,
        physics_dt=0.01,
        decimation=2,
        episode_length_s=3.0,
        actions={"joint_pos": mdp.Action("relative_joint_position", actuators=".*", scale={".*": 0.5})},
        observations={
            "policy": {
                "joint_pos": mdp.Obs("joint_pos_rel", joints=".*"),
                "joint_vel": mdp.Obs("joint_vel_rel", joints=".*", scale=0.1),
            }
        },
        rewards={
            "height": mdp.Reward(site_height, weight=1.0, site="tip"),
            "action_rate": mdp.Reward("action_rate_l2", weight=-0.01),
        },
        events={
            "start": mdp.Event(
                "reset_joints_by_offset", "reset", joints=".*", position=(-0.5, 0.5), velocity=(0.0, 0.0)
            )
        },
    )

    @classmethod
    def build_model(cls, config: mdp.TermsConfig) -> mujoco.MjModel:
        """Return the robot."""
        return mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("robot.xml")))


SPEC = TaskSpec(
    name="$task",
    summary="Raise the tip of an arm that hangs down.",
    env=Raise.config,
    agent=ppo(64, 64),
    num_envs=256,
    max_iterations=100,
    builder="$name.task:Raise",
)
''',
    "tests/test_task.py": '''\
"""The task is found by its name, and rewards what it promises."""

import pytest
import shoal
import torch


def test_an_arm_that_hangs_down_earns_the_height_of_its_tip() -> None:
    start = {"events.start.position": (0.0, 0.0)}
    env = shoal.make("$task", num_envs=2, device="cpu", env=start)
    _, rewards, dones, _ = env.step(torch.zeros(2, env.num_actions))
    # The tip hangs 0.5 m below the shoulder, which is at 0.8 m; a step is 0.02 s long.
    assert rewards.tolist() == pytest.approx([0.3 * 0.02] * 2, rel=1e-3)
    assert not dones.any()


def test_episodes_end_after_three_seconds() -> None:
    assert shoal.make("$task", num_envs=1, device="cpu").max_episode_length == 150
''',
}
"""Files of a project by their paths; `$name` is its name, and `$task` that of its task."""


def new(words: Sequence[str]) -> list[str]:
    """Write a project of your own: a robot, its task, a test, and the entry point by which Shoal finds the task."""
    if len(words) != 1 or not words[0].isidentifier() or keyword.iskeyword(words[0]) or not words[0].islower():
        raise UsageError(
            f"`shoal new` takes the name of a package in lower case, but got '{' '.join(words)}': pass one, such as "
            "`shoal new my_robot`."
        )
    (name,) = words
    if importlib.util.find_spec(name) is not None:
        raise UsageError(f"There is a package or module {name} already, which would be imported: choose another name.")
    project = Path(name)
    if project.exists():
        raise UsageError(f"There is {project.absolute()} already: choose another name, or another directory.")
    task = "".join(part.capitalize() for part in name.split("_"))
    with refusing_os_errors(f"The project cannot be written to {project.absolute()}", "change to another directory"):
        for path, text in _FILES.items():
            file = project / Template(path).substitute(name=name)
            folder_of(file).write(file, Template(text).substitute(name=name, task=task).encode())
    return [
        f"Wrote {project}/. Install it with `uv pip install -e {project}`, then: train {task}, pytest, play {task}."
    ]
