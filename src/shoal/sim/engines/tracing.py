"""Images and rays by MuJoCo Warp's ray tracer: it needs where geoms and cameras are, which both engines have."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp

from shoal.errors import UsageError
from shoal.sim.bookkeeping import copy_rows_where
from shoal.sim.engines.engine import Engine, row_copies, rows_of, use_parameter

_POSES = ("geom_xpos", "geom_xmat")
_CAMERAS = ("cam_xpos", "cam_xmat")
_LIGHTS = ("light_xpos", "light_xdir")
_LENSES = {"cam_fovy", "cam_intrinsic"}
_SEEN = _LENSES | {"geom_size", "geom_rgba", "mat_rgba", "mat_texrepeat"}
_SEEN |= {f"light_{name}" for name in ("ambient", "attenuation", "cutoff", "diffuse", "exponent", "specular")}
_SEEN |= {f"mat_{name}" for name in ("emission", "shininess", "specular")}
"""Parameters of the model that the tracer reads."""
_DATA = {"rgb": "rgb_data", "depth": "depth_data", "segmentation": "seg_data"}
"""Where the tracer has each kind of image."""
ALIGNMENTS = ("base", "yaw", "world")
_GROUPS: Any = wp.types.vector(length=6, dtype=float)


class _Tracer:
    """What traces rays in every environment. Made when all parameters of the engine are known, before it starts."""

    def __init__(self, engine: Engine, model: mujoco.MjModel, poses: Sequence[str], settings: dict[str, Any]) -> None:
        """Prepare; `poses` are opened in the engine beside those of geoms, and `settings` are of the render context.

        Raises:
            UsageError: MuJoCo Warp does not trace this model.
        """
        if model.nflex:
            raise UsageError("Cameras or rays were asked for, but the model has a flex, which they miss: remove one.")
        nothing = wp.empty((engine.num_envs, 0), dtype=wp.vec3, device=engine.device)
        opened: dict[str, Any] = dict.fromkeys((*_LIGHTS, "flexvert_xpos"), nothing)
        opened |= {name: engine.data(name) for name in (*_POSES, *poses)}
        self._data: Any = SimpleNamespace(nworld=engine.num_envs, **opened)
        try:
            self._model: Any = mjw.put_model(model)
        except (NotImplementedError, ValueError) as error:
            raise UsageError(
                f"Cameras or rays were asked for, but MuJoCo Warp, which traces them, does not take this model "
                f"({str(error).strip().rstrip('.')}): change the model."
            ) from error
        self._context: Any = mjw.create_render_context(model, nworld=engine.num_envs, **settings)
        for name in _SEEN & engine.parameters.keys():
            use_parameter(self._model, name, engine.parameters[name])

    def trace(self) -> None:
        """Trace the rays of all environments, in the poses that the engine has."""
        mjw.refit_bvh(self._model, self._data, self._context)


class TracedCamera(_Tracer):
    """A camera of the model."""

    def __init__(
        self,
        engine: Engine,
        model: mujoco.MjModel,
        term: Any,  # noqa: ANN401  Of a room above.
        *,
        camera: int,
        images: Mapping[str, wp.array],
        age: wp.array,
        period: int,
    ) -> None:
        """Prepare.

        Args:
            engine: The engine.
            model: The model, as the task made it.
            term: What is declared, a `shoal.mdp.cameras.CameraTerm`.
            camera: Index of the camera in the model.
            images: Where the images go, by kind, row by row from the top: `depth` [m], `rgb` and `segmentation`. Each
                (num_envs, pixels).
            age: Steps of each environment's episode. Shape (num_envs,).
            period: Steps from one image to the next.
        """
        is_lit = "rgb" in images
        super().__init__(
            engine,
            model,
            _CAMERAS + _LIGHTS if is_lit and model.nlight else _CAMERAS,
            {
                "cam_res": (term.width, term.height),
                "cam_active": [camera],
                "enabled_geom_groups": [*term.enabled_geom_groups],
                "render_rgb": is_lit,
                "render_depth": "depth" in images,
                "render_seg": "segmentation" in images,
                "use_textures": is_lit and term.use_textures,
                "render_skybox": is_lit and term.use_textures,
                "use_shadows": is_lit and term.use_shadows,
                "use_precomputed_rays": engine.parameters.keys().isdisjoint(_LENSES),
            },
        )
        if "light_attenuation" in engine.parameters:
            self._context.light_attenuation_is_default = False
        self._aimed: list[Any] = []
        if period == 1:
            for kind, array in images.items():
                setattr(self._context, _DATA[kind], array)
            return
        # Rays of environments that are not due miss everything at once. Their images stay as they are.
        self._due = wp.empty(engine.num_envs, dtype=wp.bool)
        self._aimed = [age, period, self._data.cam_xpos, self._data.cam_xmat]
        self._data.cam_xpos, self._data.cam_xmat = map(wp.empty_like, self._aimed[2:])
        self._copies = row_copies((getattr(self._context, _DATA[kind]), array) for kind, array in images.items())
        self._columns = sum(rows_of(array).shape[1] for array in images.values())

    def trace(self) -> None:
        """Draw the images."""
        super().trace()
        if not self._aimed:
            mjw.render(self._model, self._data, self._context)
            return
        poses = self._data.cam_xpos, self._data.cam_xmat
        wp.launch(_look, dim=poses[0].shape, inputs=self._aimed, outputs=[*poses, self._due])
        mjw.render(self._model, self._data, self._context)
        inputs = [self._due, self._due, self._copies]
        wp.launch(copy_rows_where, dim=(len(self._due), self._columns), inputs=inputs)


@wp.kernel(enable_backward=False)
def _look(
    age: wp.array[wp.int32],
    period: int,
    positions: wp.array2d[wp.vec3],
    turns: wp.array2d[wp.mat33],
    seen_from: wp.array2d[wp.vec3],
    turned: wp.array2d[wp.mat33],
    due: wp.array[wp.bool],
) -> None:
    """Let cameras look from where they are if an image is due, and otherwise into the sky, from above everything."""
    env, camera = wp.tid()
    due[env] = age[env] % period == 0
    seen_from[env, camera] = wp.vec3(0.0, 0.0, 1.0e7)
    turned[env, camera] = wp.mat33(1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, -1.0)
    if due[env]:
        seen_from[env, camera] = positions[env, camera]
        turned[env, camera] = turns[env, camera]


@wp.func
def aligned(turn: wp.mat33, alignment: int) -> wp.mat33:
    """Return how a pattern is turned in the world, from how its frame is."""
    if alignment == 0:
        return turn
    if alignment == 2:  # noqa: PLR2004  `ALIGNMENTS`.
        return wp.mat33(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    ahead = wp.vec2(turn[0, 0], turn[1, 0])
    if wp.length(ahead) < 0.1:  # noqa: PLR2004  The x axis is nearly vertical: y is to its left.
        ahead = wp.vec2(turn[1, 1], -turn[0, 1])
    ahead = wp.normalize(ahead)
    return wp.mat33(ahead[0], -ahead[1], 0.0, ahead[1], ahead[0], 0.0, 0.0, 0.0, 1.0)


@wp.kernel(enable_backward=False)
def _aim(
    positions: wp.array2d[wp.vec3],
    turns: wp.array2d[wp.mat33],
    frames: wp.array[wp.int32],
    offsets: wp.array[wp.vec3],
    directions: wp.array[wp.vec3],
    alignment: int,
    origins: wp.array2d[wp.vec3],
    rays: wp.array2d[wp.vec3],
) -> None:
    """Turn each ray of each frame into the world."""
    env, ray = wp.tid()
    frame, at = frames[ray // offsets.shape[0]], ray % offsets.shape[0]
    turn = aligned(turns[env, frame], alignment)
    origins[env, ray] = positions[env, frame] + turn @ offsets[at]
    rays[env, ray] = turn @ directions[at]


@wp.kernel(enable_backward=False)
def _end(longest: float, distances: wp.array2d[wp.float32], normals: wp.array2d[wp.vec3]) -> None:
    """Forget what is hit beyond the end of a ray."""
    env, ray = wp.tid()
    if distances[env, ray] > longest:
        distances[env, ray] = -1.0
        normals[env, ray] = wp.vec3()


class TracedRays(_Tracer):
    """Rays from bodies, sites or geoms."""

    def __init__(
        self,
        engine: Engine,
        model: mujoco.MjModel,
        term: Any,  # noqa: ANN401  Of a room above.
        *,
        frames: Any,  # noqa: ANN401
        hits: Any,  # noqa: ANN401
    ) -> None:
        """Prepare the rays of a `shoal.mdp.rays.Frames`, as a `shoal.mdp.cameras.RayCastTerm` declares them.

        What they hit goes to `hits`, a `shoal.mdp.annotations.RayData`.
        """
        names, groups = (f"{frames.prefix}xpos", f"{frames.prefix}xmat"), term.include_geom_groups
        settings = {"cam_active": [], "enabled_geom_groups": [*groups], "use_textures": False}
        super().__init__(engine, model, names, settings)
        self._hits, self._shape = hits, hits.distance.shape
        excluded = frames.bodies if term.exclude_parent_body else [-1] * len(frames.bodies)
        self._excluded = wp.array(np.repeat(excluded, len(frames.offsets)), dtype=wp.int32)
        self._origins, self._rays = (wp.empty(self._shape, dtype=wp.vec3) for _ in range(2))
        self._geoms = wp.empty(self._shape, dtype=wp.int32)
        self._groups = _GROUPS(*(-1.0 if group in groups else 0.0 for group in range(6)))
        self._aimed = [
            *(engine.data(name) for name in names),
            wp.array(frames.indices, dtype=wp.int32),
            *(wp.array(each, dtype=wp.vec3) for each in (frames.offsets, frames.directions)),
            ALIGNMENTS.index(term.ray_alignment),
        ]

    def trace(self) -> None:
        """Cast the rays."""
        super().trace()
        hits = self._hits
        wp.launch(_aim, dim=self._shape, inputs=self._aimed, outputs=[self._origins, self._rays])
        mjw.rays(
            *(self._model, self._data, self._origins, self._rays, self._groups, True, self._excluded),
            *(hits.distance, self._geoms, hits.normal, self._context),
        )
        wp.launch(_end, dim=self._shape, inputs=[hits.max_distance], outputs=[hits.distance, hits.normal])
