"""`shoal replay`: step a diverged environment of a training again with MuJoCo C, and film it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import PYTHON
from shoal.checks.film import choose_gl, refuse_no_film
from shoal.config import ReplayConfig
from shoal.errors import UsageError
from shoal.plan.launch import refuse_unwritable
from shoal.procfs import how_it_ended

if TYPE_CHECKING:
    import numpy as np

    from shoal.sim.nan.dump import DivergedEnv, Dump
    from shoal.sim.nan.replay import Replay

_MOST_S = 120.0
"""Time limit of a replay [s]. It usually takes seconds."""
_FILM_SIZE = (1280, 720)
_FRAMES_A_SECOND = 30
"""Of the video. Each physics step is a frame, as divergence takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Result of a replay."""

    dump: Dump
    lost: DivergedEnv
    replay: Replay
    video: str | None
    """Path of the video."""


def replay(config: ReplayConfig) -> Replayed:
    """Step a diverged environment of a training again, with MuJoCo C.

    Raises:
        UsageError: There is no such file or environment, or it cannot be filmed here.
        ShoalError: The video could not be made.
    """
    file = Path(config.file)
    if not file.is_file():
        message = f"{file} does not exist: pass what a training left when it stopped, <run>/ranks/rank_00000.lost.npz."
        raise UsageError(message)
    if config.video_path is not None:
        refuse_no_film("cpu", os.environ)
        refuse_unwritable("--video-path", Path(config.video_path).parent)

    from shoal.sim.nan.dump import read_dump

    dump = read_dump(file)
    lost = dump.find(config.env)

    result = _step_again(file, lost)
    if config.video_path is not None:
        if not len(result.positions):
            raise UsageError(
                f"Environment {lost.env} was lost before anything moved, so there is no film: leave --video-path out."
            )
        _film(dump.scene, result.positions, Path(config.video_path))
    return Replayed(dump=dump, lost=lost, replay=result, video=config.video_path)


def _step_again(file: Path, lost: DivergedEnv) -> Replay:
    """Replay in another process with a time limit, as a malicious file may crash or block it."""
    from shoal.sim.nan.replay import Replay

    words = [*PYTHON, "-m", "shoal.sim.nan.replay", str(file), str(lost.env)]
    try:
        ended = subprocess.run(words, capture_output=True, timeout=_MOST_S, check=False)
        if ended.returncode == 0:
            return Replay.from_json(ended.stdout.decode())
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        why = how_it_ended(ended.returncode) if ended.returncode < 0 or not lines else lines[-1]
    except subprocess.TimeoutExpired:
        why = f"it took longer than {_MOST_S:.0f} s"
    message = f"{file} could not be replayed ({why}): copy it once more, and replay only files whose origin you know."
    raise UsageError(message)


def _film(scene: np.ndarray, positions: np.ndarray, target: Path) -> None:
    """Film every physics step."""
    from shoal.sim.render.clip import Clip
    from shoal.sim.render.film import make_film

    clip = Clip(scene=scene, positions=positions, step_dt=1 / _FRAMES_A_SECOND, size=_FILM_SIZE)
    make_film(clip, target, choose_gl("cpu", os.environ))
