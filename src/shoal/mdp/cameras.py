"""The declaration of cameras, see `shoal.sim.engines.tracing`."""

from dataclasses import dataclass
from typing import Annotated

from shoal.config.checks import Rule, at_least
from shoal.mdp.terms import SensorTerm, Value, declare

_ANGLE = Rule("be above 0 and below 180", lambda angle: 0.0 < angle < 180.0)  # noqa: PLR2004  Degrees.


@dataclass(frozen=True, kw_only=True)
class CameraTerm(SensorTerm):
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
