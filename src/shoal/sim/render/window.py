"""MuJoCo's viewer window."""

import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Self

import glfw
import mujoco
import mujoco.viewer
import numpy as np

from shoal.errors import UsageError
from shoal.sim.render.marks import Mark, Pen

_CLOSED_AFTER_S = 5.0
"""Longest time that a window takes to close [s]."""


class Window:
    """Shows joint positions of a model."""

    def __init__(self, model: mujoco.MjModel, on_key: Callable[[int], None]) -> None:
        """Open it. `on_key` gets the code of each key, on a thread of the window: letters are their own codes.

        Raises:
            UsageError: The display does not answer.
        """
        # MuJoCo would end the whole process.
        with warnings.catch_warnings(action="ignore", category=glfw.GLFWError):
            if not glfw.init():
                message = "No window can be opened: the display that DISPLAY names does not answer. Pass --viewer web."
                raise UsageError(message)
        self._model = model
        self._data = mujoco.MjData(model)
        self._pen = Pen(model)
        before = set(threading.enumerate())
        bare = {"show_left_ui": False, "show_right_ui": False}
        self._viewer = mujoco.viewer.launch_passive(model, self._data, key_callback=on_key, **bare)
        self._threads = set(threading.enumerate()) - before
        self._viewer.opt.flags[mujoco.mjtVisFlag.mjVIS_CONTACTPOINT] = True

    @property
    def is_open(self) -> bool:
        """Whether the user has not closed it."""
        return self._viewer.is_running()

    def show(self, positions: np.ndarray, marks: Iterable[Mark] = ()) -> None:
        """Show joint positions, (nq,), their contacts, and marks."""
        with self._viewer.lock():
            self._data.qpos[:] = positions
            mujoco.mj_forward(self._model, self._data)
            if (scene := self._viewer.user_scn) is not None:
                scene.ngeom = 0
                self._pen.draw(marks, scene)
        self._viewer.sync()

    def __enter__(self) -> Self:
        """Keep it open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, and wait until it is closed: a process that ends while a window still draws crashes."""
        self._viewer.close()
        for thread in self._threads:
            thread.join(_CLOSED_AFTER_S)
