"""The viser scene: environments in a grid, or on one shared terrain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import numpy as np
import pytest
import viser
from hypothesis import given
from hypothesis import strategies as st
from support.browser import drawn as drawn_by_chromium
from support.browser import needs_chromium, visit
from support.commands import wait_until

from shoal.sim.render.instances import Shown
from shoal.sim.render.marks import Arrow, Ghost, Sphere
from shoal.viewer.scene import MIN_ASPECT, SPACING, ViserScene, grid_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

BALL = '<body name="ball" pos="0 0 1"><freejoint/><geom name="ball" type="sphere" size="0.1"/></body>'
HILL = '<asset><hfield name="hill" nrow="3" ncol="3" size="9 9 1 1" elevation="0 0 0 0 1 0 0 0 0"/></asset>'
ON_A_PLANE = f'<mujoco><worldbody><geom name="floor" type="plane" size="0 0 1"/>{BALL}</worldbody></mujoco>'
ON_A_HILL = f'<mujoco>{HILL}<worldbody><geom name="floor" type="hfield" hfield="hill"/>{BALL}</worldbody></mujoco>'
POSITIONS = np.array([[0.0, 0, 1, 1, 0, 0, 0], [5.0, -3, 2, 1, 0, 0, 0]])
"""Of two environments."""


@pytest.fixture
def server() -> Iterator[viser.ViserServer]:
    """A page that nobody visits."""
    made = viser.ViserServer("127.0.0.1", port=0, verbose=False)
    yield made
    made.stop()


def drawn(scene: ViserScene, root: str) -> list[np.ndarray]:
    """Where the scene has put what moves, or what is fixed, by its surface. Shapes (instances, 3)."""
    return [np.asarray(node.batched_positions) for node in scene._nodes[root].values() if node.visible]


def test_environments_on_a_plane_stand_apart(server: viser.ViserServer) -> None:
    positions = POSITIONS * [0, 0, 1, 1, 1, 1, 1]
    scene = ViserScene(server, mujoco.MjModel.from_xml_string(ON_A_PLANE), positions)
    scene.update(positions, selected=0, follow=False)
    (balls,) = drawn(scene, "moving")
    assert np.linalg.norm(balls[0, :2] - balls[1, :2]) > 0.2


def test_environments_on_a_height_field_share_it(server: viser.ViserServer) -> None:
    scene = ViserScene(server, mujoco.MjModel.from_xml_string(ON_A_HILL), POSITIONS)
    scene.update(POSITIONS, selected=1, follow=True)
    (hill,), (balls, *_contacts) = drawn(scene, "fixed"), drawn(scene, "moving")
    assert hill.shape == (1, 3)
    np.testing.assert_allclose(balls, POSITIONS[:, :3])
    np.testing.assert_allclose(scene._frame.position, (-5.0, 3.0, -1.0))  # It is kept as high as the first one was.
    scene.update(POSITIONS, selected=1, follow=False)
    np.testing.assert_allclose(scene._frame.position, (0.0, 0.0, 0.0))


def test_collision_geoms_and_marks_are_hidden_again(server: viser.ViserServer) -> None:
    model = mujoco.MjModel.from_xml_string(ON_A_PLANE.replace("<geom", '<geom group="3"'))
    scene = ViserScene(server, model, POSITIONS)
    counts, grounds = [], []
    for shows_hidden, marks in (
        (False, [[], []]),
        (True, [[Arrow((0, 0, 0), (1, 0, 0))], []]),
        (False, [[], []]),
        (True, [[], []]),
    ):
        scene.update(POSITIONS, marks, selected=0, follow=False, shown=Shown(collisions=shows_hidden))
        counts.append([len(each) for each in drawn(scene, "moving")])
        grounds.append([node.visible for node in scene._nodes["fixed"].values()])
    assert (counts, grounds[:3]) == ([[], [2, 1], [], [2]], [[], [True], [False]])
    assert grounds[3] == [True]


def test_square_things_stand_in_a_square() -> None:
    places = grid_offsets(4, (1.0, 1.0)) / SPACING
    assert places.tolist() == pytest.approx(np.array([[-0.5, -0.5, 0], [0.5, -0.5, 0], [-0.5, 0.5, 0], [0.5, 0.5, 0]]))


def test_wide_things_stand_one_behind_the_other() -> None:
    places = grid_offsets(4, (4.0, 0.1)) / SPACING
    assert places[:, 0].tolist() == [0, 0, 0, 0]
    assert np.diff(places[:, 1]).tolist() == pytest.approx([4.0 * MIN_ASPECT] * 3)


def test_one_stands_in_the_middle() -> None:
    assert grid_offsets(1, (4.0, 2.0)).tolist() == [[0, 0, 0]]


def test_things_without_a_size_do_not_stand_in_each_other() -> None:
    assert len(np.unique(grid_offsets(9, (0.0, 0.0)), axis=0)) == 9


@given(st.integers(1, 64), st.floats(0.01, 100), st.floats(0.01, 100))
def test_none_stands_in_another(num_envs: int, width: float, depth: float) -> None:
    places = grid_offsets(num_envs, (width, depth))
    apart = np.abs(places[:, None] - places[None])
    clear = (apart[..., 0] > width) | (apart[..., 1] > depth)
    assert clear[~np.eye(num_envs, dtype=bool)].all()


@pytest.mark.slow
@needs_chromium
def test_marks_and_sites_are_drawn_by_a_browser_until_they_are_gone(server: viser.ViserServer) -> None:
    site = '<site name="tip" pos="0.2 -0.2 -0.2" size="0.15" rgba="1 1 0 1"/></body>'
    model = mujoco.MjModel.from_xml_string(ON_A_PLANE.replace("</body>", site).replace('size="0.1"', 'size="0.3"'))
    scene = ViserScene(server, model, POSITIONS[:1])
    marks = {
        "red": Arrow((-0.5, 0.0, 0.2), (0.0, 0.0, 1.5), (1.0, 0.0, 0.0, 1.0), 0.05),
        "blue": Sphere((0.6, 0.0, 1.0), 0.2, (0.0, 0.0, 1.0, 1.0)),
        "magenta": Ghost((-1.2, 1.0, 0.5, 1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 1.0, 1.0)),
    }
    with visit(f"http://127.0.0.1:{server.get_port()}") as page:

        def seen() -> set[str]:
            """Colours of what is drawn below the page's own fields."""
            colours = drawn_by_chromium(page)[280:540].transpose(2, 0, 1)
            (red, green, blue), (no_red, no_green, no_blue) = (
                colours > 0.7 * colours.max(0),
                colours < 0.45 * colours.max(0),
            )
            looks = {"yellow": red & green & no_blue, "red": red & no_green & no_blue}
            looks |= {"blue": no_red & no_green & blue, "magenta": red & no_green & blue}
            return {name for name, where in looks.items() if where.sum() > 500}

        for shown in (marks, {}, marks):
            scene.update(POSITIONS[:1], [list(shown.values())], selected=0, follow=False)
            assert wait_until(lambda shown=shown: seen() == {"yellow", *shown}), (seen(), [*shown])


@pytest.mark.slow
@needs_chromium
def test_a_click_picks_the_environment_of_the_robot_that_it_hits(server: viser.ViserServer) -> None:
    model = mujoco.MjModel.from_xml_string(ON_A_PLANE.replace('size="0.1"', 'size="0.3" rgba="1 0 0 1"'))
    scene = ViserScene(server, model, POSITIONS * [0, 0, 1, 1, 1, 1, 1])
    with visit(f"http://127.0.0.1:{server.get_port()}") as page:
        scene.update(POSITIONS * [0, 0, 0.5, 1, 1, 1, 1], selected=0, follow=False)

        def reds() -> np.ndarray:
            red, green, blue = drawn_by_chromium(page).transpose(2, 0, 1)
            return np.argwhere((red > green + 60) & (red > blue + 60))

        assert wait_until(lambda: len(reds()) > 1000)
        seen, (places,) = reds(), (scene._offsets[:, 0],)
        picked = []
        for env in np.argsort(places):  # From left to right, at a height where both are.
            halves = np.array_split(seen[seen[:, 1].argsort()], 2)
            y, x = np.median(halves[len(picked)], axis=0)
            page.mouse.click(float(x), float(y))
            assert wait_until(lambda: not scene.picked.empty())
            picked.append((int(env), scene.picked.get()))
        assert [clicked for _, clicked in picked] == [env for env, _ in picked]
