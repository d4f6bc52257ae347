"""Sensors that terms need, added to a model."""

from typing import Any

import mujoco

from shoal.mdp.config import TermsConfig
from shoal.mdp.names import contact_sensor, matching

_FOUND_AND_NET_FORCE = (3, 3, 1)
"""The first two fields of MuJoCo's contact sensor; their sum, in the world; one slot."""
_FOUND_AND_LARGEST_FORCE = (3, 2, 1)
"""The same, of the contact with the largest force, in the contact's frame."""


def add_contact_sensors(spec: mujoco.MjSpec, config: TermsConfig) -> None:
    """Add MuJoCo's contact sensors for the contacts of a configuration that ask for them: those with `bodies`.

    The sensor of a body has the number of its contacts, and their force on what it touches, in the world [N]; that of a
    contact of `touches_itself` is of the contacts between the body and its descendants.

    Raises:
        UsageError: A pattern matches no body.
    """
    terms = {name: term for name, term in config.terms("contacts").items() if "bodies" in term.parameters}
    bodies = [body.name for body in spec.bodies]
    for name, term in terms.items():
        for index in matching(
            "body", bodies, term.bodies, f"contacts.{name}.bodies", config.named_roles(), config.terms("objects")
        ):
            body = bodies[index]
            sensor: dict[str, Any] = {"objtype": mujoco.mjtObj.mjOBJ_BODY, "intprm": _FOUND_AND_NET_FORCE}
            kind = "self contact" if term.func == "touches_itself" else "contact"
            if kind == "self contact":
                subtree = mujoco.mjtObj.mjOBJ_XBODY
                sensor = {"objtype": subtree, "reftype": subtree, "refname": body, "intprm": _FOUND_AND_LARGEST_FORCE}
            sensor |= {"name": contact_sensor(body, kind), "objname": body}
            if not any(each.name == sensor["name"] for each in spec.sensors):
                spec.add_sensor(type=mujoco.mjtSensor.mjSENS_CONTACT, **sensor)
