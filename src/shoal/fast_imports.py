"""Faster imports: fewer collections of garbage meanwhile, and modules that are loaded when they are first used.

torch imports its compiler, `torch._dynamo`, before anything is compiled or exported: for each step of an optimizer, for
a process group, and for tensordict, which marks functions for it. That takes longer than the rest of torch. These calls
affect compiled code alone, and are repeated on the real module when it is loaded. rsl_rl imports `git`, which starts a
process, for a log that Shoal does not write.
"""

import gc
import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any, cast

_COMPILER = "torch._dynamo"
_OBJECTS_PER_COLLECTION = 10_000
"""New objects until garbage is collected. With Python's 700 a quarter of the time of imports is collections."""
_LOCK = threading.Lock()


def speed_up_imports() -> None:
    """Collect garbage less often, and put stand-ins in the place of modules that are not imported yet."""
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    for name, stand_in in ((_COMPILER, _DeferredCompiler), ("git", _Deferred)):
        if name not in sys.modules and (spec := _find_spec(name)) is not None:
            sys.modules[name] = stand_in(name, spec)
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _find_spec(name: str) -> ModuleSpec | None:
    """Return the specification of a module, or of a package in a package, and import neither."""
    parent, _, child = name.rpartition(".")
    if not parent:
        return importlib.util.find_spec(child)
    package = _find_spec(parent)
    return package and PathFinder.find_spec(name, package.submodule_search_locations)


class _Deferred(ModuleType):
    """Stand-in for a module. Every use of it, but for `import`, loads the real one."""

    def __init__(self, name: str, spec: ModuleSpec | None = None) -> None:
        super().__init__(name)
        self.__spec__ = spec
        self.__path__ = (spec and spec.submodule_search_locations) or []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  Any attribute.
        if name.startswith("__"):  # `inspect` asks every module for its file.
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> ModuleType:
        """Return the real module, which replaces this one."""
        with _LOCK:  # Of two threads only one removes it. The import has its own lock.
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class _DeferredCompiler(_Deferred):
    """Stand-in for `torch._dynamo`, with what is called of it when nothing is compiled."""

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        super().__init__(name, spec)
        self._marks: list[Callable[[ModuleType], object]] = []
        """Calls to repeat on the real module."""
        self.trace_rules = _Deferred(f"{name}.trace_rules")
        vars(self.trace_rules)["clear_lru_cache"] = lambda: None

    def load(self) -> ModuleType:
        """Return the real module, once it knows the marked functions."""
        real = super().load()
        while self._marks:
            self._marks.pop()(real)
        return real

    def graph_break(self, msg: str = "") -> None:
        """Do nothing, as the real function does outside of compiled code."""

    def allow_in_graph(self, fn: Any) -> Any:  # noqa: ANN401  As torch declares it.
        """Mark a function."""
        self._marks.append(lambda real: real.allow_in_graph(fn))
        return fn

    def assume_constant_result(self, fn: Any) -> Any:  # noqa: ANN401
        """Mark a function."""
        self._marks.append(lambda real: real.assume_constant_result(fn))
        return fn

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:  # noqa: ANN401, FBT001, FBT002
        """Return the function as it is to torch itself, which keeps it in an attribute until that is removed."""
        if options != {"wrapping": False}:  # A decorator's result is kept for ever.
            return self.load().disable(fn, recursive, **options)
        self._marks.append(lambda _: vars(fn).pop("__dynamo_disable", None))
        return fn


class _Finder:
    """Finder of the modules within packages that have stand-ins."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Load the real package, and find a module which that may have imported meanwhile."""
        package = sys.modules.get(name.rpartition(".")[0])
        if not isinstance(package, _Deferred):
            return None
        package.load()
        module = sys.modules.get(name)
        if module is None:
            return importlib.util.find_spec(name)
        # It is imported already: a second load would make a second module. The import system takes the specification
        # from the module, and it is restored afterwards. A module of settings refuses attributes.
        attributes, own = vars(module), module.__spec__
        loader = SimpleNamespace(
            create_module=lambda _spec: module, exec_module=lambda _module: attributes.update(__spec__=own)
        )
        attributes["__spec__"] = ModuleSpec(name, cast("Loader", loader))
        return attributes["__spec__"]
