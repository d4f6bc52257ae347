# Warp's own types describe Python, where its arrays have no items and its vectors no numbers. What it compiles is read
# as Python here: arguments of functions and fields of structs are checked, and everything else of Warp is Any.
from typing import Any, TypeVar

_T = TypeVar("_T")
launch: Any

def __getattr__(name: str) -> Any: ...
def func(function: _T) -> _T: ...
def struct(cls: _T) -> _T: ...
