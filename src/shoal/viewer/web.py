"""Web viewer: serves a page with viser, on which a policy plays until a signal comes."""

import io
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import NoReturn

import viser

from shoal.config import PlayConfig
from shoal.envs.capabilities import capabilities_of
from shoal.errors import ShoalError
from shoal.learn.evaluation import TrainedPolicy, open_policy
from shoal.plan.checkpoints import Checkpoint, checkpoint_at, list_checkpoints
from shoal.plan.rundir import RunDir
from shoal.reading import parse_object, read_bytes
from shoal.run_record import trains
from shoal.sim.render.instances import actuator_limits
from shoal.tasks.registry import TaskSpec
from shoal.viewer.access import Guard
from shoal.viewer.controls import ControlPanel
from shoal.viewer.playback import FRAME_S, Pacer, Playback
from shoal.viewer.scene import ViserScene

STATUS_PERIOD_S = 0.1
"""Period of updates of the texts: faster ones cannot be read [s]."""
CHECKPOINT_POLL_S = 1.0
"""Period of the search for newer checkpoints [s]."""


def show(
    config: PlayConfig, spec: TaskSpec, model: Path | None, device: str, *, print_line: Callable[[str], None]
) -> NoReturn:
    """Serve the page at the free port `config.viewer_port` until a signal comes. An untrained agent has no `model`."""
    show_one_of({spec.name: (config, spec, model)}, device, print_line=print_line)


def show_one_of(
    offered: Mapping[str, tuple[PlayConfig, TaskSpec, Path | None]],
    device: str,
    *,
    print_line: Callable[[str], None],
    on_served: Callable[[str], object] = lambda _: None,
) -> NoReturn:
    """Serve the page with the first of these policies, and a menu of the others, until a signal comes.

    `on_served` is called once, with the page's address.
    """
    menu = list(offered)
    with ExitStack() as page:
        server: _Server | None = None
        token = ""
        while True:
            config, spec, model = offered[menu[0]]
            with open_policy(config, spec, model, device, num_envs=config.num_envs) as (env, policy):
                playback = Playback(env, policy)
                is_first = server is None
                if server is None:
                    server, token = page.enter_context(_served(config, label=spec.name))
                server.gui.reset()
                server.scene.reset()
                scene = ViserScene(server, playback.picture.scene, playback.positions())
                panel = ControlPanel(
                    server.gui,
                    num_envs=env.num_envs,
                    commands=playback.commands,
                    rewards=playback.rewards.names,
                    metrics=playback.metrics.names,
                    limits=actuator_limits(playback.picture.scene) if playback.state() else None,
                    scans=playback.has_scan,
                    seed=config.seed if capabilities_of(env).can_restart else None,
                    follow=bool((playback.picture.scene.jnt_type == 0).any()),
                    can_push=playback.can_push,
                    images=playback.images(0),
                    menu=menu if len(menu) > 1 else (),
                )
                if is_first:
                    lines = viewer_urls(config.viewer_host, server.get_port(), token)
                    for line in lines:
                        print_line(line)
                    on_served(lines[0].split()[1])
                chosen = WebViewer(playback, scene, panel, model, config.checkpoint).run()
                panel.set_problem(f"{chosen} is being loaded.")
            menu.remove(chosen)
            menu.insert(0, chosen)


def viewer_urls(host: str, port: int, token: str) -> list[str]:
    """Return lines with the page's address, and the ssh command for another machine."""
    shown = socket.gethostname() if host in {"0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104
    lines = [f"Viewer: http://{shown}:{port}/?token={token} (Ctrl-C ends it)"]
    if host.startswith("127.") or host == "localhost":
        lines.append(f"From another machine, first run: ssh -L {port}:{host}:{port} {socket.gethostname()}")
    return lines


class _Server(viser.ViserServer):
    """viser's server without public share URLs, which any visitor could request."""

    def request_share_url(self, verbose: bool = True) -> str | None:  # noqa: FBT001, FBT002  viser's signature.
        del verbose
        return None


@contextmanager
def _served(config: PlayConfig, *, label: str) -> Iterator[tuple[_Server, str]]:
    """Serve an empty page; yield its server and token."""
    guard = Guard(config.viewer_host)
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # It logs each client that does not speak HTTP.
    with guard.installed(), redirect_stdout(io.StringIO()):  # viser prints the address in its own words.
        server = _Server(host=config.viewer_host, port=config.viewer_port, label=label, verbose=False)
    try:
        server.gui.configure_theme(show_share_button=False, show_logo=False)
        server.gui.main_panel.dock_right()
        yield server, guard.token
    finally:
        with redirect_stdout(io.StringIO()):
            server.stop()


class LoadedCheckpoint:
    """The checkpoint whose weights play, and the search for a newer one of its run."""

    def __init__(self, model: Path) -> None:
        """Describe `model`, the file with the weights. A file outside a run never has a newer one."""
        run = RunDir(model.absolute().parent.parent.parent)
        self.run = run if run.checkpoints_dir == model.absolute().parent.parent else None
        """The run of the checkpoint, which may still be training."""
        self.name = model.absolute().parent.name if self.run else model.name
        """Name on the page: the iterations done, or the file."""

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints of the run, the newest first."""
        return list_checkpoints(self.run)[::-1] if self.run else []

    def newer(self) -> Checkpoint | None:
        """Return the newest whole checkpoint of the run, if it is newer than this one."""
        newer = [each for each in self.all() if each.iteration > int(self.name)]
        return next((each for each in newer if each.damage() is None), None)


def ending_of(run: RunDir) -> str:
    """Return how a run has ended, as sentences; nothing where it trains, or came to its end."""
    if not run.path.is_dir():
        return f"The run {run.path} does not exist any more."
    try:
        launches = parse_object(read_bytes(run.run_json), {"launches": list})["launches"]
        ended = launches[-1]["ended"]
        if (ended is not None and ended["exit_code"] == 0) or trains(run):
            return ""
        if ended is None:
            return "The training was lost: no process goes on with it. `train --resume` does."
        return f"The training ended with exit code {ended['exit_code']}: {ended['last_line']}"
    except (OSError, ValueError, LookupError, TypeError, ShoalError):  # Its files are of another program, or change.
        return ""


class WebViewer:
    """The loop behind the page: steps that are due, clicks, and newer checkpoints.

    An untrained agent, named `agent`, has no checkpoint `model`.
    """

    def __init__(
        self, playback: Playback, scene: ViserScene, panel: ControlPanel, model: Path | None, agent: str
    ) -> None:
        self._playback, self._scene, self._panel = playback, scene, panel
        self._pacer = Pacer(playback.picture.step_dt)
        self._loaded = LoadedCheckpoint(model) if model else None
        self._labels: dict[str, str] = {}
        self._problem = ""
        self._status_updated = self._checkpoints_polled = 0.0
        self._view: tuple[object, ...] | None = None
        if self._loaded is None or self._loaded.run is None:
            name = self._loaded.name if self._loaded else f"none: {agent} actions"
            panel.set_checkpoints([name], name.partition(" ")[0])
            panel.hide_newer()
        else:
            self._list_checkpoints(self._loaded)

    def run(self) -> str:
        """Play until another policy of the menu is chosen, and return its name, or until a signal comes."""
        shown = self._panel.chosen.value if self._panel.chosen else ""
        while True:
            started = time.monotonic()
            self._update(started)
            if self._panel.chosen and self._panel.chosen.value != shown:
                return self._panel.chosen.value
            time.sleep(max(0.0, started + FRAME_S - time.monotonic()))

    def _update(self, now: float) -> None:
        panel, playback = self._panel, self._playback
        if self._loaded is not None and self._loaded.run is not None:
            self._follow_run(self._loaded, self._loaded.run, now)
        has_moved = self._handle_clicks()
        self._pacer.speed = panel.speed.value
        for _ in range(self._pacer.due(now)):
            playback.step(panel.commands)
            has_moved = True
        view = selected, follow, shown, scan = panel.selected.value, panel.follow.value, panel.shown, panel.scan.value
        if has_moved or view != self._view:
            self._view = view
            self._scene.update(
                playback.positions(),
                playback.marks(scan=selected if scan else None),
                selected=selected,
                follow=follow,
                shown=shown,
                state=playback.state() if shown.forces else {},
            )
        if now - self._status_updated >= STATUS_PERIOD_S:
            self._status_updated = now
            self._show_numbers(selected)

    def _show_numbers(self, selected: int) -> None:
        panel, playback = self._panel, self._playback
        panel.set_status(playback.status(selected))
        panel.set_images(playback.images(selected))
        panel.rewards.show(playback.rewards.of(selected), playback.picture.step_dt)
        if panel.metrics is not None:
            panel.metrics.show(playback.metrics.of(selected), playback.picture.step_dt)
        shows = panel.efforts.value
        panel.set_efforts(
            self._scene.actuator_forces(playback.positions(), playback.state(), selected) if shows else None
        )

    def _handle_clicks(self) -> bool:
        """Handle the clicks since the last call; return whether the environments have moved."""
        has_moved, panel, playback = False, self._panel, self._playback
        while not self._scene.picked.empty():
            panel.selected.value = self._scene.picked.get()
            panel.follow.value = True
        for action in panel.clicks():
            if action == "pause":
                self._pacer.paused = not self._pacer.paused
                panel.set_paused(paused=self._pacer.paused)
            elif action == "step":
                playback.step(panel.commands)
                has_moved = True
            elif action in {"reset", "again"}:
                playback.restart(panel.seed(new=action == "reset"))
                has_moved = True
            elif action == "push":
                playback.push()
            elif self._loaded is not None:
                self._load(self._loaded, self._loaded.newer())
        return has_moved

    def _follow_run(self, loaded: LoadedCheckpoint, run: RunDir, now: float) -> None:
        """Load the checkpoint that is chosen, and offer and load newer ones as they appear."""
        while not self._panel.checkpoints.empty():
            chosen = self._panel.checkpoints.get()
            if chosen in self._labels:  # A visitor can send any other name.
                self._panel.loads_newer.value = False
                self._load(loaded, Checkpoint(run.checkpoints_dir / chosen))
        if now - self._checkpoints_polled >= CHECKPOINT_POLL_S:
            self._checkpoints_polled = now
            if self._panel.loads_newer.value:
                self._load(loaded, loaded.newer())
            self._list_checkpoints(loaded)
            self._panel.set_problem(" ".join(filter(None, (self._problem, ending_of(run)))))

    def _list_checkpoints(self, loaded: LoadedCheckpoint) -> None:
        found = loaded.all()
        names = [each.path.name for each in found]
        for name, each in zip(names, found, strict=True):
            if name not in self._labels:
                self._labels[name] = f"{name} ({each.score:.4g})" if each.score is not None else name
        names += [] if loaded.name in names else [loaded.name]  # The training may have removed it.
        self._panel.set_checkpoints([self._labels.get(name, name) for name in names], loaded.name)

    def _load(self, loaded: LoadedCheckpoint, checkpoint: Checkpoint | None) -> None:
        """Load the weights of a checkpoint, if there is one."""
        policy = self._playback.policy
        if checkpoint is None or not isinstance(policy, TrainedPolicy):
            return
        try:
            policy.load(checkpoint_at(checkpoint.path))
        except ShoalError as error:  # The training may have removed it just now.
            self._problem = str(error)
        else:
            loaded.name, self._problem = checkpoint.path.name, ""
        self._list_checkpoints(loaded)
