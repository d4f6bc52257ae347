"""Depth images by MuJoCo Warp's ray tracer: it needs where geoms and cameras are, which both engines have."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import mujoco_warp as mjw
import warp as wp

from shoal.errors import UsageError
from shoal.sim.engines.engine import Engine

_POSES = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat")
_LENSES = ("cam_fovy", "cam_intrinsic")


class DepthCamera:
    """A camera of the model in every environment."""

    def __init__(
        self,
        engine: Engine,
        model: mujoco.MjModel,
        *,
        camera: int,
        depth: wp.array,
        size: tuple[int, int],
        groups: Sequence[int],
    ) -> None:
        """Prepare, when all parameters of the engine are known, and before it starts.

        Args:
            engine: The engine, in which the poses are opened.
            model: The model, as the task made it.
            camera: Index of the camera in the model.
            depth: Where the images go, row by row from the top [m]. Shape (num_envs, height * width).
            size: Width and height of the images.
            groups: The groups of geoms that the camera sees.

        Raises:
            UsageError: MuJoCo Warp does not draw this model.
        """
        if model.nflex:
            raise UsageError("A camera was asked for, but the model has a flex, which cameras do not see: remove one.")
        poses: dict[str, Any] = {name: engine.data(name) for name in _POSES}
        nothing = wp.empty((engine.num_envs, 0), dtype=wp.vec3, device=engine.device)
        unused = dict.fromkeys(("light_xpos", "light_xdir", "flexvert_xpos"), nothing)
        self._data: Any = SimpleNamespace(nworld=engine.num_envs, **poses, **unused)
        try:
            self._model: Any = mjw.put_model(model)
        except (NotImplementedError, ValueError) as error:
            raise UsageError(
                f"A camera was asked for, but MuJoCo Warp, which draws its images, does not take this model "
                f"({str(error).strip().rstrip('.')}): change the model."
            ) from error
        self._context: Any = mjw.create_render_context(
            model,
            nworld=engine.num_envs,
            cam_res=size,
            cam_active=[camera],
            enabled_geom_groups=[*groups],
            render_rgb=False,
            render_depth=True,
            render_seg=False,
            use_textures=False,
            use_precomputed_rays=engine.parameters.keys().isdisjoint(_LENSES),
        )
        self._context.depth_data = depth
        for name in {"geom_size", *_LENSES} & engine.parameters.keys():
            setattr(self._model, name, engine.parameters[name])

    def render(self) -> None:
        """Draw the images of all environments, of the poses that the engine has."""
        mjw.refit_bvh(self._model, self._data, self._context)
        mjw.render(self._model, self._data, self._context)
