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
_TREE = ("bvh", "bvh_id", "lower", "upper", "group", "group_root")
_TREE += ("mesh_registry", "mesh_bvh_id", "mesh_bounds_size", "hfield_registry", "hfield_bvh_id", "hfield_bounds_size")
"""Where the tracer has its tree of geoms, and those of their meshes and height fields."""
_GROUPS: Any = wp.types.vector(length=6, dtype=float)


class Scene:
    """What all tracers share: the model, where its geoms are, and a tree of these for each choice of their groups.

    It is made when all parameters of the engine are known, before that starts.
    """

    def __init__(self, engine: Engine, model: mujoco.MjModel, age: wp.array, step_dt: float) -> None:
        """Prepare; `age` are the steps of each environment's episode, (num_envs,), and `step_dt` is one's length [s].

        Raises:
            UsageError: MuJoCo Warp does not trace this model.
        """
        if model.nflex:
            raise UsageError("Cameras or rays were asked for, but the model has a flex, which they miss: remove one.")
        self.engine, self._age, self._step_dt = engine, age, step_dt
        nothing = wp.empty((engine.num_envs, 0), dtype=wp.vec3, device=engine.device)
        self.data: Any = SimpleNamespace(nworld=engine.num_envs, **dict.fromkeys((*_LIGHTS, "flexvert_xpos"), nothing))
        self.add_poses(_POSES)
        try:
            self.model: Any = mjw.put_model(model)
        except (NotImplementedError, ValueError) as error:
            raise UsageError(
                f"Cameras or rays were asked for, but MuJoCo Warp, which traces them, does not take this model "
                f"({str(error).strip().rstrip('.')}): change the model."
            ) from error
        for name in _SEEN & engine.parameters.keys():
            use_parameter(self.model, name, engine.parameters[name])
        self._source, self._groups = model, {*model.geom_group.tolist()}
        self._trees: dict[frozenset[int], Any] = {}

    def add_poses(self, names: Sequence[str]) -> None:
        """Have further poses of the engine."""
        vars(self.data).update({name: self.engine.data(name) for name in names})

    def context(self, groups: Sequence[int], **settings: Any) -> Any:  # noqa: ANN401  MuJoCo Warp's.
        """Return a render context with the tree of the geoms of some groups."""
        made: Any = mjw.create_render_context(
            self._source, nworld=self.data.nworld, enabled_geom_groups=[*groups], **settings
        )
        tree = self._trees.setdefault(frozenset(self._groups.intersection(groups)), made)
        vars(made).update({name: getattr(tree, name) for name in _TREE})
        return made

    def tree(self, groups: Sequence[int]) -> Any:  # noqa: ANN401  The same.
        """Return a render context whose tree has the geoms of some groups, maybe beside others."""
        found = [each for each in self._trees if each.issuperset(self._groups.intersection(groups))]
        return self._trees[min(found, key=len)] if found else self.context(groups, cam_active=[], use_textures=False)

    def clock(self, term: Any) -> tuple[wp.array, int]:  # noqa: ANN401  Of a room above.
        """Return the ages of environments, and the period of ages at which a tracer is due [steps]."""
        return self._age, max(1, round(term.update_period / self._step_dt))

    def refit(self) -> None:
        """Fit the trees to the poses that the engine has."""
        for tree in self._trees.values():
            mjw.refit_bvh(self.model, self.data, tree)


class TracedCamera:
    """A camera of the model."""

    def __init__(
        self,
        scene: Scene,
        term: Any,  # noqa: ANN401  Of a room above.
        *,
        camera: int,
        images: Mapping[str, wp.array],
    ) -> None:
        """Prepare.

        Args:
            scene: The scene.
            term: What is declared, a `shoal.mdp.cameras.CameraTerm`.
            camera: Index of the camera in the model.
            images: Where the images go, by kind, row by row from the top: `depth` [m], `rgb` and `segmentation`. Each
                (num_envs, pixels).
        """
        is_lit, parameters = "rgb" in images, scene.engine.parameters.keys()
        scene.add_poses(_CAMERAS + _LIGHTS if is_lit and scene.model.nlight else _CAMERAS)
        self._scene, self._data = scene, scene.data
        self._context = scene.context(
            term.enabled_geom_groups,
            cam_res=(term.width, term.height),
            cam_active=[camera],
            render_rgb=is_lit,
            render_depth="depth" in images,
            render_seg="segmentation" in images,
            use_textures=is_lit and term.use_textures,
            render_skybox=is_lit and term.use_textures,
            use_shadows=is_lit and term.use_shadows,
            use_precomputed_rays=parameters.isdisjoint(_LENSES),
        )
        if "light_attenuation" in parameters:
            self._context.light_attenuation_is_default = False
        self._aimed: list[Any] = []
        clock = scene.clock(term)
        if clock[1] == 1:
            for kind, array in images.items():
                setattr(self._context, _DATA[kind], array)
            return
        # Rays of environments that are not due miss everything at once. Their images stay as they are.
        self._due = wp.empty(scene.data.nworld, dtype=wp.bool)
        self._aimed = [*clock, *(getattr(scene.data, name) for name in _CAMERAS)]
        looks = map(wp.empty_like, self._aimed[2:])
        self._data = SimpleNamespace(**vars(scene.data) | dict(zip(_CAMERAS, looks, strict=True)))
        self._copies = row_copies((getattr(self._context, _DATA[kind]), array) for kind, array in images.items())
        self._columns = sum(rows_of(array).shape[1] for array in images.values())

    def trace(self) -> None:
        """Draw the images."""
        if not self._aimed:
            mjw.render(self._scene.model, self._data, self._context)
            return
        poses = self._data.cam_xpos, self._data.cam_xmat
        wp.launch(_look, dim=poses[0].shape, inputs=self._aimed, outputs=[*poses, self._due])
        mjw.render(self._scene.model, self._data, self._context)
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
    age: wp.array[wp.int32],
    period: int,
    positions: wp.array2d[wp.vec3],
    turns: wp.array2d[wp.mat33],
    frames: wp.array[wp.int32],
    offsets: wp.array[wp.vec3],
    directions: wp.array[wp.vec3],
    alignment: int,
    origins: wp.array2d[wp.vec3],
    rays: wp.array2d[wp.vec3],
) -> None:
    """Turn each ray of each frame into the world; into the sky, from above everything, if it is not due."""
    env, ray = wp.tid()
    origins[env, ray] = wp.vec3(0.0, 0.0, 1.0e7)
    rays[env, ray] = wp.vec3(0.0, 0.0, 1.0)
    if age[env] % period == 0:
        frame, at = frames[ray // offsets.shape[0]], ray % offsets.shape[0]
        turn = aligned(turns[env, frame], alignment)
        origins[env, ray] = positions[env, frame] + turn @ offsets[at]
        rays[env, ray] = turn @ directions[at]


@wp.kernel(enable_backward=False)
def _keep(
    age: wp.array[wp.int32],
    period: int,
    found: wp.array2d[wp.float32],
    found_normals: wp.array2d[wp.vec3],
    longest: float,
    distances: wp.array2d[wp.float32],
    normals: wp.array2d[wp.vec3],
) -> None:
    """Keep what rays that are due hit before their end."""
    env, ray = wp.tid()
    if age[env] % period == 0:
        is_near = found[env, ray] <= longest
        distances[env, ray] = wp.where(is_near, found[env, ray], -1.0)
        normals[env, ray] = wp.where(is_near, found_normals[env, ray], wp.vec3())


class TracedRays:
    """Rays from bodies, sites or geoms."""

    def __init__(
        self,
        scene: Scene,
        term: Any,  # noqa: ANN401  Of a room above.
        *,
        frames: Any,  # noqa: ANN401
        hits: Any,  # noqa: ANN401
    ) -> None:
        """Prepare the rays of a `shoal.mdp.rays.Frames`, as a `shoal.mdp.cameras.RayCastTerm` declares them.

        What they hit goes to `hits`, a `shoal.mdp.annotations.RayData`.
        """
        poses, groups = (f"{frames.prefix}xpos", f"{frames.prefix}xmat"), term.include_geom_groups
        scene.add_poses(poses)
        self._scene, self._context, self._hits = scene, scene.tree(groups), hits
        excluded = frames.bodies if term.exclude_parent_body else [-1] * len(frames.bodies)
        self._excluded = wp.array(np.repeat(excluded, len(frames.offsets)), dtype=wp.int32)
        kinds = (wp.vec3, wp.vec3, wp.float32, wp.int32, wp.vec3)
        self._origins, self._rays, self._found, self._geoms, self._normals = (
            wp.empty(hits.distance.shape, dtype=kind) for kind in kinds
        )
        self._groups = _GROUPS(*(-1.0 if group in groups else 0.0 for group in range(6)))
        self._clock = scene.clock(term)
        self._aimed = [
            *(getattr(scene.data, name) for name in poses),
            wp.array(frames.indices, dtype=wp.int32),
            *(wp.array(each, dtype=wp.vec3) for each in (frames.offsets, frames.directions)),
            ALIGNMENTS.index(term.ray_alignment),
        ]

    def trace(self) -> None:
        """Cast the rays."""
        hits, rays = self._hits, (self._origins, self._rays)
        wp.launch(_aim, dim=hits.distance.shape, inputs=[*self._clock, *self._aimed], outputs=[*rays])
        mjw.rays(
            *(self._scene.model, self._scene.data, *rays, self._groups, True, self._excluded),
            *(self._found, self._geoms, self._normals, self._context),
        )
        inputs = [*self._clock, self._found, self._normals, hits.max_distance]
        wp.launch(_keep, dim=hits.distance.shape, inputs=inputs, outputs=[hits.distance, hits.normal])
