"""Objects of a scene: functions that return an `MjSpec`, by name in ``Object("geom", ...)``. Needs no Warp."""

from typing import Any

import mujoco
import numpy as np

from shoal import errors
from shoal.mdp import scene
from shoal.sim.engines import model_files


def mjcf(file: str) -> mujoco.MjSpec:
    """Return the model of an MJCF file, by its path or by its name in an installed package, see `find_robot`."""
    return scene.read_spec(model_files.find_robot(file))


def geom(type: str, **attributes: Any) -> mujoco.MjSpec:  # noqa: A002  MuJoCo's name.
    """Return a body `body` with one geom `geom`, such as a box, of any of MuJoCo's attributes: size [m], mass [kg].

    Raises:
        UsageError: MuJoCo has no geom of this type.
    """
    types = {name.removeprefix("mjGEOM_").lower(): kind for name, kind in mujoco.mjtGeom.__members__.items()}
    if type not in types:
        raise errors.UsageError(
            f"The type of a geom is '{type}', which MuJoCo does not have.{errors.did_you_mean(type, types)}"
        )
    spec = mujoco.MjSpec()
    made = spec.worldbody.add_body(name="body").add_geom(name="geom", type=types[type])
    for name, value in attributes.items():
        if not hasattr(made, name):
            raise errors.UsageError(
                f"'{name}' is no attribute of MuJoCo's geoms.{errors.did_you_mean(name, dir(made))}"
            )
        if isinstance(numbers := getattr(made, name), np.ndarray):
            numbers[: len(value)] = value
        else:
            setattr(made, name, value)
    return spec
