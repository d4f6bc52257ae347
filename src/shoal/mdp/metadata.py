"""Metadata of annotations, which Warp does not know: it reads ``Annotated[int, ...]`` as ``int``. Needs no Warp.

Warp evaluates annotations when `wp.func` defines a function. That may be the first use of a name of `shoal.mdp`, so
that its function that does so is replaced as soon as Warp is imported, before or after this package.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

_CODEGEN = "warp._src.codegen"


def type_of(annotation: Any) -> Any:
    """Return the type of an annotation, as Warp reads it."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _replace(codegen: ModuleType) -> None:
    arguments_of = codegen.get_full_arg_spec

    def get_full_arg_spec(function: Any) -> Any:
        found = arguments_of(function)
        return found._replace(annotations={name: type_of(each) for name, each in found.annotations.items()})

    vars(codegen)["get_full_arg_spec"] = get_full_arg_spec


class _Finder:
    """Finder of the module that is not imported yet."""

    @staticmethod
    def find_spec(name: str, path: Any = None, _target: object = None) -> ModuleSpec | None:
        """Return where the module is, and replace its function once it is imported."""
        spec = PathFinder.find_spec(name, path) if name == _CODEGEN else None
        if spec is None or spec.loader is None:
            return None
        run: Any = spec.loader.exec_module

        def run_and_replace(module: ModuleType) -> None:
            run(module)
            _replace(module)

        vars(spec.loader)["exec_module"] = run_and_replace
        return spec


def let_warp_ignore_metadata() -> None:
    """Let Warp read types alone, now or when it is imported."""
    if _CODEGEN in sys.modules:
        _replace(sys.modules[_CODEGEN])
    else:
        sys.meta_path.insert(0, _Finder)
