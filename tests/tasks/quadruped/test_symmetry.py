"""A robot that starts in the mirror image of a state, and acts in the mirror, goes on as the mirror image."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.calm import CALM, changed
from support.mirrored import check_motion_in_the_mirror, with_mirror_images
from tensordict import TensorDict

from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.mdp.robots import SHIPPED, build_on_a_plane, read_robot
from shoal.mdp.symmetry import mirror, mirrored_joints
from shoal.mdp.terms import Action, Contact, Obs
from shoal.mdp.values import grid_points
from shoal.tasks.quadruped.config import FLAT, ROUGH
from shoal.tasks.quadruped.task import FlatVelocity, RoughVelocity

NUM_ENVS = 8
SAME: dict[str, Any] = {
    "events": {"foot_friction": {"ranges": [0.8, 0.8]}},
    "commands": {"twist": {"resampling_time": [1e3, 1e3]}},
}
"""All environments are the same, and with CALM nothing is random but the first states."""


TROT = FLAT.change(
    actions={
        "joint_pos": Action(
            "gait_joint_position",
            actuators=".*",
            scale=0.3,
            swing={".*hip": 0.0, ".*thigh": 0.3, ".*calf": -0.6},
            shift={"(FL|RR).*": 0.0, "(FR|RL).*": 0.5},
            period=0.4,
            command="twist",
        )
    },
    observations={group: {"phase": Obs("gait_phase", period=0.4)} for group in ("policy", "critic")},
)
"""Diagonal legs step together, by a clock."""
FELT = FLAT.change(
    contacts={
        "forces": Contact(geoms="{feet}", secondary_body="world"),
        "legs": Contact(bodies=".*", track_air_time=True),
    },
    observations={
        "critic": {
            **{name: Obs(name, contact="feet") for name in ("foot_height", "foot_air_time", "foot_contact")},
            "foot_contact_forces": Obs("foot_contact_forces", contact="forces"),
            "air_times": Obs("foot_air_time", contact="legs", scale=0.5),
            "command_again": Obs("generated_commands", command="twist"),
        }
    },
)
"""The critic observes feet."""


@pytest.mark.parametrize("config", [FLAT, TROT, FELT], ids=["of their own", "by a clock", "with feet"])
def test_what_acts_in_the_mirror_moves_in_the_mirror(config: Any) -> None:
    task = FlatVelocity(changed(config, CALM, SAME).undisturbed(), num_envs=2 * NUM_ENVS, device="cpu", seed=1)
    check_motion_in_the_mirror(task, "(?<=^[FR])[RL]", period=0.4)


@pytest.mark.parametrize("name", ["swing", "shift"])
def test_a_gait_that_is_another_one_in_the_mirror_is_refused(name: str) -> None:
    crooked = {"swing": {"(FL|RL|RR).*": 0.1, "FR.*": 0.2}, "shift": {"(FL|FR).*": 0.0, "(RL|RR).*": 0.5}}
    config = TROT.change(actions={"joint_pos": {name: crooked[name]}})
    env = WarpVecEnv(FlatVelocity(config, num_envs=1, device="cpu", seed=1))
    with pytest.raises(UsageError, match=f"gait_joint_position, whose {name} differs between the sides"):
        mirror(env, None, torch.zeros(1, 12))


def test_a_height_scan_is_mirrored_point_by_point() -> None:
    task = RoughVelocity(ROUGH, num_envs=1, device="cpu", seed=1)
    env = WarpVecEnv(task)
    points = grid_points(1.2, 0.8, 0.1)
    heights = torch.tensor(points @ (1.0, 10.0), dtype=torch.float32)  # A number for each point.
    rows = torch.cat([torch.zeros(48), heights])[None]
    mirrored = with_mirror_images(env, TensorDict({"policy": rows}, batch_size=[1]))
    torch.testing.assert_close(mirrored["policy"][1, 48:].double(), torch.tensor(points @ (1.0, -10.0)))


def test_a_mirror_image_of_a_mirror_image_is_the_original() -> None:
    robot = read_robot(build_on_a_plane(FLAT), FLAT)
    found = mirrored_joints(build_on_a_plane(FLAT), robot.start)
    sides = {"R_": "L_", "L_": "R_"}
    assert found == {
        name: (re.sub("R_|L_", lambda side: sides[side[0]], name), -1 if name.endswith("_hip") else 1)
        for name in robot.joint_names
    }


def test_a_robot_without_a_left_side_like_its_right_one_is_refused(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    assert "0 0.9 -1.8  0 0.9 -1.8  0 0.9 -1.8  0 0.9 -1.8" in text
    path = tmp_path / "crooked.xml"
    path.write_text(text.replace("0 0.9 -1.8  0 0.9 -1.8  0 0.9 -1.8", "0 1.2 -1.8  0 0.9 -1.8  0 0.9 -1.8"))
    model = build_on_a_plane(replace(FLAT, robot=str(path)))
    robot = read_robot(model, FLAT)
    with pytest.raises(UsageError, match=r"but joint FR_thigh has no partner.*--agent.algorithm.symmetry.no-enabled"):
        mirrored_joints(model, robot.start)
