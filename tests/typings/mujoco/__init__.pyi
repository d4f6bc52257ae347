# MuJoCo's Python package says nothing of its types: its names live in compiled modules without stubs.
from typing import Any

def __getattr__(name: str) -> Any: ...
