"""An episode, as workers write it."""

from typing import Any

EPISODE: dict[str, Any] = {
    "index": 0,
    "seed": 1,
    "return": 0.0,
    "length": 5,
    "ended": "time out",
    "success": None,
    "met_at_reset": False,
    "terms": {},
    "metrics": {},
}
