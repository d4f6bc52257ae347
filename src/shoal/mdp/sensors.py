"""Sensors that terms need, added to a model."""

from collections.abc import Mapping

import mujoco
import numpy as np

from shoal.mdp.config import TermsConfig
from shoal.mdp.names import Names, contact_sensor

_FOUND_AND_NET_FORCE = (3, 3, 1)
"""The first two fields of MuJoCo's contact sensor; their sum, in the world; one slot."""


def add_contact_sensors(spec: mujoco.MjSpec, config: TermsConfig, roles: Mapping[str, str] | None = None) -> None:
    """Add MuJoCo's contact sensors for the contacts of a configuration that ask for them: those with `bodies`.

    The sensor of a body has the number of its contacts, and their force on what it touches, in the world [N].

    Args:
        spec: The model, before it is compiled.
        config: The configuration.
        roles: See `TermsTask.roles`.

    Raises:
        UsageError: A pattern matches no body.
    """
    terms = {name: term for name, term in config.terms("contacts").items() if "bodies" in term.parameters}
    if not terms:
        return
    names = Names(spec.compile(), np.zeros(0), roles or {})
    for name, term in terms.items():
        for index in names.select("body", term.bodies, f"contacts.{name}.bodies"):
            body = names.model.body(index).name
            if not any(sensor.name == contact_sensor(body) for sensor in spec.sensors):
                spec.add_sensor(
                    name=contact_sensor(body),
                    type=mujoco.mjtSensor.mjSENS_CONTACT,
                    objtype=mujoco.mjtObj.mjOBJ_BODY,
                    objname=body,
                    intprm=_FOUND_AND_NET_FORCE,
                )
