"""Robot tasks from terms: observations, rewards, terminations, events, commands and actions as functions by name.

``from shoal import mdp`` has all that a task of one's own is written with, see `shoal.mdp.public`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.mdp.metadata import let_warp_ignore_metadata

if TYPE_CHECKING:
    from shoal.mdp.public import *  # noqa: F403

let_warp_ignore_metadata()
_ABSENT = f"module {__name__!r} has no attribute '{{}}'"


def __getattr__(name: str) -> Any:
    """Return a public name. They are imported at its first use: configurations and `--help` need no Warp."""
    if name == "__all__" or not name.startswith("_"):
        public = import_module("shoal.mdp.public")
        if name in ("__all__", *public.__all__):
            return getattr(public, name)
    raise AttributeError(_ABSENT.format(name))
