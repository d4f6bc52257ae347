"""The page's keys, lists and clicks, in a real browser that visits a viewer of this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import viser
from support import commanded_task
from support.browser import drawn, field, needs_chromium, read, visit
from support.commands import wait_until
from support.saved import write_checkpoint

from shoal.config import PlayConfig
from shoal.learn.evaluation import TrainedPolicy, open_policy
from shoal.plan.rundir import RunDir
from shoal.tasks import registry
from shoal.viewer.controls import ControlPanel
from shoal.viewer.playback import Playback
from shoal.viewer.scene import ViserScene
from shoal.viewer.web import WebViewer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, needs_chromium]


@dataclass
class Visited:
    """A viewer of two balls and three checkpoints, and its page."""

    page: Page
    run: RunDir
    viewer: WebViewer
    panel: ControlPanel
    playback: Playback
    server: viser.ViserServer

    def until(self, condition: Callable[[], bool]) -> bool:
        """Let the viewer's loop go round until a condition holds."""

        def goes_round() -> bool:
            self.viewer._update(time.monotonic())
            return condition()

        return wait_until(goes_round)

    def camera(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the visitor's camera is, and what it looks at [m]."""
        (client,) = self.server.get_clients().values()
        return client.camera.position, client.camera.look_at

    def looks_from(self, position: np.ndarray) -> bool:
        """Whether the visitor's camera is there [m]."""
        return np.allclose(self.camera()[0], position, atol=1e-3)


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    """The page of a run with the checkpoints 1, 2 and 3, of which 2 is the best."""
    spec = registry.resolve(f"{commanded_task.__file__}:Steered")
    config = PlayConfig(task=spec.name, env=spec.env, agent=spec.agent)
    run = RunDir(tmp_path_factory.mktemp("run"))
    with open_policy(config, spec, None, "cpu", num_envs=2) as (env, _):
        policy = TrainedPolicy(env, config, "cpu")
        for iteration in (1, 2, 3):
            write_checkpoint(run, iteration, TrainedPolicy(env, config, "cpu").learner.state(), 1)
        model = run.checkpoint_dir(3) / "model.pt"
        policy.load(model)
        playback = Playback(env, policy)
        server = viser.ViserServer("127.0.0.1", port=0, verbose=False)
        scene = ViserScene(server, playback.picture.scene, playback.positions())
        panel = ControlPanel(
            server.gui,
            num_envs=2,
            commands=playback.commands,
            rewards=playback.rewards.names,
            metrics=(),
            limits=None,
            scans=False,
            seed=1,
            follow=False,
        )
        viewer = WebViewer(playback, scene, panel, model, config.checkpoint)
        viewer._pacer.paused = True  # A page that shows steps is slow.
        try:
            with visit(f"http://127.0.0.1:{server.get_port()}") as page:
                visited = Visited(page, run, viewer, panel, playback, server)
                assert visited.until(lambda: len(server.get_clients()) == 1)
                # A page draws before it has the scene's camera and its keys, and on a busy machine long before.
                assert visited.until(lambda: visited.looks_from(server.initial_camera.position))
                page.wait_for_function("window.shoalKeys")
                yield visited
        finally:
            server.stop()


def test_the_camera_stays_where_it_is_under_the_keys_that_steer(visited: Visited) -> None:
    page = visited.page
    before = visited.camera()
    for key in "wasdqex WASDQEX ":  # Capital ones are those of Caps Lock. The second space bar pauses again.
        page.keyboard.press(key, delay=100)
        np.testing.assert_array_equal(visited.camera(), before, err_msg=key)
    page.keyboard.down("ArrowUp")  # A key that is the camera's alone.
    assert visited.until(lambda: not np.array_equal(visited.camera(), before))
    page.keyboard.up("ArrowUp")


def test_a_checkpoint_chosen_in_the_list_is_loaded_and_stays_and_keys_steer_then(visited: Visited) -> None:
    page, panel, policy = visited.page, visited.panel, visited.playback.policy
    assert isinstance(policy, TrainedPolicy)
    field(page, "Checkpoint").click()
    assert page.get_by_role("option").all_inner_texts() == ["000003", "000002", "000001"]
    page.get_by_role("option", name="000002").click()
    assert visited.until(lambda: read(page, "Checkpoint") == "000002")
    saved = torch.load(visited.run.checkpoint_dir(2) / "model.pt", weights_only=True)["actor_state_dict"]
    assert visited.until(
        lambda: all(map(torch.equal, policy.learner.state()["actor_state_dict"].values(), saved.values()))
    )
    assert not panel.loads_newer.value
    page.keyboard.press("x")
    assert visited.until(lambda: panel.commands == [0.0, 0.0, 0.0])
    page.keyboard.press("w")
    assert visited.until(lambda: panel.commands == [0.2, 0.0, 0.0])


def test_a_choice_is_kept_that_arrives_while_the_viewer_looks_for_newer_checkpoints(visited: Visited) -> None:
    page, panel, viewer = visited.page, visited.panel, visited.viewer
    assert viewer._loaded is not None
    field(page, "Checkpoint").click()
    page.get_by_role("option", name="000001").click()
    assert wait_until(lambda: panel._checkpoint.value == "000001")
    viewer._list_checkpoints(viewer._loaded)
    viewer._update(time.monotonic())
    assert viewer._loaded.name == "000001"


def test_keys_steer_after_a_slider_was_moved(visited: Visited) -> None:
    page, panel = visited.page, visited.panel
    page.keyboard.press("x")
    assert visited.until(lambda: panel.commands == [0.0, 0.0, 0.0])
    slider = page.get_by_role("slider").nth(2)
    slider.focus()
    page.keyboard.press("a")
    assert visited.until(lambda: panel.commands == [0.0, 0.1, 0.0])


def test_a_key_acts_in_the_loop_which_writes_the_sliders_too_and_not_beside_it(visited: Visited) -> None:
    page, panel = visited.page, visited.panel
    page.keyboard.press("x")
    assert visited.until(lambda: panel.commands == [0.0, 0.0, 0.0])
    page.keyboard.press("w")
    assert wait_until(lambda: not panel._keys.empty())
    assert panel.commands == [0.0, 0.0, 0.0]
    visited.viewer._update(time.monotonic())
    assert panel.commands == [0.2, 0.0, 0.0]


def test_a_robot_that_was_clicked_is_followed_until_follow_it_is_unticked(visited: Visited) -> None:
    page, panel, playback = visited.page, visited.panel, visited.playback

    def reds() -> np.ndarray:
        red, green, blue = drawn(page).transpose(2, 0, 1)
        return np.argwhere((red > green + 60) & (red > blue + 60))

    def moved(since: np.ndarray) -> float:
        """How far the balls have moved in the picture [pixels]."""
        return abs(float(np.median(reds()[:, 1]) - np.median(since[:, 1])))

    (client,) = visited.server.get_clients().values()
    client.camera.position, client.camera.look_at = np.array([0.8, -0.5, 0.3]), np.zeros(3)  # The balls are apart.
    page.keyboard.press("x")
    page.wait_for_timeout(500)
    assert visited.until(lambda: len(reds()) > 100)
    seen = reds()
    y, x = np.median(seen[seen[:, 1] > np.median(seen[:, 1])], axis=0)  # The right one is environment 1.
    page.mouse.click(float(x), float(y))
    follows = page.get_by_label("Follow it")
    assert visited.until(lambda: follows.is_checked() and panel.selected.value == 1)
    assert visited.until(lambda: moved(seen) > 10)  # It has come to the middle.
    page.wait_for_timeout(500)
    seen = reds()
    page.keyboard.press("w")
    assert visited.until(lambda: panel.commands == [0.2, 0.0, 0.0])
    for _ in range(5):
        panel._clicks.put("step")
    assert visited.until(lambda: playback.positions()[1] > 0.09)
    page.wait_for_timeout(500)
    assert moved(seen) < 5
    follows.uncheck()
    assert visited.until(lambda: moved(seen) > 20)
    follows.check()
    assert visited.until(lambda: moved(seen) < 5)
