"""Marks in the web viewer: what is sent to the browser."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np

from shoal.sim.render.marks import Ghost
from shoal.sim.render.shapes import SceneGeometry
from shoal.user_code import load
from shoal.viewer.marks import ViserMarks

ARM = f"{Path(__file__).parents[2] / 'docs' / 'examples' / 'arm.py'}:Arm"

TWO = """<mujoco><worldbody>
  <body name="red"><joint type="slide"/><geom size="0.1" rgba="1 0 0 1"/></body>
  <body name="blue"><joint type="slide"/><geom size="0.1" rgba="0 0 1 1"/></body></worldbody></mujoco>"""


def test_a_ghost_of_one_body_is_drawn_in_its_own_colour_in_each_environment() -> None:
    nodes: dict[str, Any] = {}

    def add(name: str, **fields: Any) -> SimpleNamespace:
        nodes[name] = SimpleNamespace(**fields)
        return nodes[name]

    scene = SimpleNamespace(add_batched_meshes_simple=add, add_arrows=add, add_point_cloud=add)
    server: Any = SimpleNamespace(scene=scene)
    marks = ViserMarks(server, SceneGeometry(mujoco.MjModel.from_xml_string(TWO)), "/scene")
    offsets = np.array([[0.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    marks.update([[Ghost([1.0, 2.0], None, body="blue")], []], [np.zeros((0, 3))] * 2, offsets)
    (node,) = nodes.values()
    assert node.batched_positions.tolist() == [[0.0, 0.0, 2.0]]
    assert node.batched_colors.tolist() == [[0, 0, 255]]
    marks.update([[Ghost([1.0, 2.0])], [Ghost([3.0, 4.0])]], [np.zeros((0, 3))] * 2, offsets)
    assert node.batched_positions.tolist() == [[0, 0, 1], [0, 0, 2], [5, 0, 3], [5, 0, 4]]
    assert len(node.batched_wxyzs) == len(node.batched_colors) == len(node.batched_opacities) == 4
    marks.update([[], []], [np.zeros((0, 3))] * 2, offsets)
    assert not node.visible


def test_a_robot_without_a_free_base_draws_its_own_marks_only() -> None:
    arm = load(ARM)
    task = arm(arm.config, num_envs=2, device="cpu", seed=0)
    (goal,) = task.marks({"commands": np.array([0.1, 0.2])})
    assert np.allclose(goal.position, [0.1, 0.2, 0.0])
