"""The declarations of cameras and rays, see `shoal.sim.engines.tracing`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from shoal.config.checks import Rule, above, at_least
from shoal.mdp.terms import Function, SensorTerm, Value, declare

_ANGLE = Rule("be above 0 and below 180", lambda angle: 0.0 < angle < 180.0)  # noqa: PLR2004  Degrees.


@dataclass(frozen=True, kw_only=True)
class TracedTerm(SensorTerm):
    """Base of cameras and rays."""

    update_period: Annotated[float, at_least(0)] = 0.0
    """Time from one image or cast to the next [s], in whole steps; 0 for one in each step. Episodes begin with one."""


@dataclass(frozen=True, kw_only=True)
class CameraTerm(TracedTerm):
    """A camera whose images are observed: one of the model, or one that is added to it."""

    camera_name: str = ""
    """The camera of the model; empty for a new one, which alone has what follows."""
    parent_body: str = ""
    """Pattern of the body that the new camera moves with; empty for the world."""
    pos: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """Where it is in the frame of that body [m]."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """Its orientation there, with the real part first. It looks along its -z axis, and its x axis points right."""
    fovy: Annotated[float, _ANGLE] = 45.0
    """Angle from the top to the bottom of the image [degrees]."""
    width: Annotated[int, at_least(1)] = 160
    """Columns of the image."""
    height: Annotated[int, at_least(1)] = 120
    """Rows of the image."""
    enabled_geom_groups: tuple[int, ...] = (0, 1, 2)
    """Groups of the geoms that it sees."""
    use_textures: bool = True
    """Whether colours have the textures of materials and of the sky."""
    use_shadows: bool = False
    """Whether lights cast shadows."""


def Camera(**params: Value) -> CameraTerm:  # noqa: N802  A declaration reads as a value.
    """Declare a camera; the fields of `CameraTerm` are its parameters. Names are mjlab's."""
    return declare(CameraTerm, "camera", params)


@dataclass(frozen=True, kw_only=True)
class RayCastTerm(TracedTerm):
    """Rays of a pattern of `shoal.mdp.ray_patterns`, from each of some bodies, sites or geoms."""

    counts: ClassVar[bool] = True
    body: str = ""
    """Pattern of the bodies that rays begin at; or instead of bodies:"""
    site: str = ""
    """Pattern of sites."""
    geom: str = ""
    """Pattern of geoms."""
    ray_alignment: Literal["base", "yaw", "world"] = "base"
    """Whether the pattern turns with its frame, or about the vertical axis alone, or not at all."""
    max_distance: Annotated[float, above(0)] = 10.0
    """Length of the rays [m]."""
    exclude_parent_body: bool = True
    """Whether rays pass through the geoms of the body that they begin at, or of the body of the site or geom."""
    include_geom_groups: tuple[int, ...] = (0, 1, 2)
    """Groups of the geoms that they hit."""


def RayCast(pattern: Function, **params: Value) -> RayCastTerm:  # noqa: N802  The same.
    """Declare rays by a pattern: `grid`, `ring`, `pinhole`, or a function that returns offsets and directions.

    ``RayCast("grid", size=(1.6, 1.0), resolution=0.1, body="trunk", ray_alignment="yaw")``. The parameters are those of
    the pattern and the fields of `RayCastTerm`. Names are mjlab's.
    """
    return declare(RayCastTerm, pattern, params)
