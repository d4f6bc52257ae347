"""Images by MuJoCo Warp's ray tracer: it needs where geoms, cameras and lights are, which both engines have."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import mujoco
import mujoco_warp as mjw
import warp as wp

from shoal.errors import UsageError
from shoal.sim.engines.engine import Engine, use_parameter

_POSES = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat")
_LIGHTS = ("light_xpos", "light_xdir")
_LENSES = {"cam_fovy", "cam_intrinsic"}
_SEEN = _LENSES | {"geom_size", "geom_rgba", "mat_rgba", "mat_texrepeat"}
_SEEN |= {f"light_{name}" for name in ("ambient", "attenuation", "cutoff", "diffuse", "exponent", "specular")}
_SEEN |= {f"mat_{name}" for name in ("emission", "shininess", "specular")}
"""Parameters of the model that the tracer reads."""
_DATA = {"rgb": "rgb_data", "depth": "depth_data", "segmentation": "seg_data"}
"""Where the tracer has each kind of image."""


class TracedCamera:
    """A camera of the model in every environment."""

    def __init__(
        self,
        engine: Engine,
        model: mujoco.MjModel,
        term: Any,  # noqa: ANN401  Of a room above.
        *,
        camera: int,
        images: Mapping[str, wp.array],
    ) -> None:
        """Prepare, when all parameters of the engine are known, and before it starts.

        Args:
            engine: The engine, in which the poses are opened.
            model: The model, as the task made it.
            term: What is declared, a `shoal.mdp.cameras.CameraTerm`.
            camera: Index of the camera in the model.
            images: Where the images go, by kind, row by row from the top: `depth` [m], `rgb` and
                `segmentation`. Each (num_envs, pixels).

        Raises:
            UsageError: MuJoCo Warp does not draw this model.
        """
        if model.nflex:
            raise UsageError("A camera was asked for, but the model has a flex, which cameras do not see: remove one.")
        is_lit, nothing = "rgb" in images, wp.empty((engine.num_envs, 0), dtype=wp.vec3, device=engine.device)
        names = _POSES + _LIGHTS if is_lit and model.nlight else _POSES
        poses: dict[str, Any] = dict.fromkeys((*_LIGHTS, "flexvert_xpos"), nothing)
        self._data: Any = SimpleNamespace(nworld=engine.num_envs, **poses | {name: engine.data(name) for name in names})
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
            cam_res=(term.width, term.height),
            cam_active=[camera],
            enabled_geom_groups=[*term.enabled_geom_groups],
            render_rgb="rgb" in images,
            render_depth="depth" in images,
            render_seg="segmentation" in images,
            use_textures=is_lit and term.use_textures,
            render_skybox=is_lit and term.use_textures,
            use_shadows=is_lit and term.use_shadows,
            use_precomputed_rays=engine.parameters.keys().isdisjoint(_LENSES),
        )
        for kind, array in images.items():
            setattr(self._context, _DATA[kind], array)
        for name in _SEEN & engine.parameters.keys():
            use_parameter(self._model, name, engine.parameters[name])
        if "light_attenuation" in engine.parameters:
            self._context.light_attenuation_is_default = False

    def render(self) -> None:
        """Draw the images of all environments, of the poses that the engine has."""
        mjw.refit_bvh(self._model, self._data, self._context)
        mjw.render(self._model, self._data, self._context)
