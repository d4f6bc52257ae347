"""The story of `shoal replay`: read what a training left, step one of its environments again, film it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import PYTHON
from shoal.checks.film import choose_gl, refuse_no_film
from shoal.errors import UsageError
from shoal.plan.training import refuse_unwritable
from shoal.procfs import how_it_ended

if TYPE_CHECKING:
    import numpy as np

    from shoal.config import ReplayConfig
    from shoal.sim.dump import Dump, LostEnv
    from shoal.sim.replay import Replay

_MOST_S = 120.0
"""How long a replay may take [s]. It takes seconds."""
_FILM_SIZE = (1280, 720)
_FRAMES_A_SECOND = 30
"""Of the film. Each physics step is a frame: what is lost, is lost within milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came out, and of what."""

    dump: Dump
    lost: LostEnv
    replay: Replay
    video: str | None
    """The film."""


def replay(config: ReplayConfig) -> Replayed:
    """Step an environment that a training has lost once more, with MuJoCo C.

    Raises:
        UsageError: There is no such file or environment, or it cannot be filmed here.
        ShoalError: There is no film.
    """
    file = Path(config.file)
    if not file.is_file():
        message = f"{file} does not exist: pass what a training left when it stopped, <run>/ranks/rank_00000.lost.npz."
        raise UsageError(message)
    if config.video_path is not None:
        refuse_no_film("cpu", os.environ)
        refuse_unwritable("--video-path", Path(config.video_path).parent)

    from shoal.sim.dump import read_dump

    dump = read_dump(file)
    lost = dump.find(config.env)

    result = _step_again(file, lost)
    if config.video_path is not None:
        if not len(result.positions):
            message = (
                f"Environment {lost.env} was lost before anything moved, so there is no film: leave --video-path out."
            )
            raise UsageError(message)
        _film(dump.scene, result.positions, Path(config.video_path))
    return Replayed(dump=dump, lost=lost, replay=result, video=config.video_path)


def _step_again(file: Path, lost: LostEnv) -> Replay:
    """Replay in a process of its own, which a file that was made to do harm may crash or never let end.

    Raises:
        UsageError: It has not replayed it.
    """
    from shoal.sim.replay import Replay

    words = [*PYTHON, "-m", "shoal.sim.replay", str(file), str(lost.env)]
    try:
        ended = subprocess.run(words, capture_output=True, timeout=_MOST_S, check=False)
        if ended.returncode == 0:
            return Replay.from_json(ended.stdout.decode())
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        why = how_it_ended(ended.returncode) if ended.returncode < 0 or not said else said[-1]
    except subprocess.TimeoutExpired:
        why = f"it took longer than {_MOST_S:.0f} s"
    message = f"{file} could not be replayed ({why}): copy it once more, and replay only files whose origin you know."
    raise UsageError(message)


def _film(scene: np.ndarray, positions: np.ndarray, target: Path) -> None:
    """Film every physics step."""
    from shoal.sim.clip import Clip
    from shoal.sim.film_process import make_film

    clip = Clip(scene=scene, positions=positions, step_dt=1 / _FRAMES_A_SECOND, size=_FILM_SIZE)
    make_film(clip, target, choose_gl("cpu", os.environ))
