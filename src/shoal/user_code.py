"""Import of what a configuration names: an attribute of a module, or of a user's own file."""

import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import UsageError, did_you_mean

_OF_FILES = "gym:"
"""Written before the file of environments of Gymnasium."""


def find_class(noun: str, reference: str, accepts: Callable[[Any], bool]) -> tuple[Any, Path]:
    """Return a class, or a function, of a user's own file, and the file.

    `noun` is what the class is, for errors: "task" or "learner". `reference` is `path/to/file.py:Class`; the class may
    be left out where the file has only one that `accepts` takes.

    Raises:
        UsageError: There is no such file or class, or the file raised while it was imported.
    """
    stem, _, name = reference.partition(".py:")
    stem = stem.removesuffix(".py")
    path = Path(f"{stem}.py").expanduser().resolve()
    if not path.is_file():
        raise UsageError(
            f"The {noun} '{reference}' asks for the file {path}, which does not exist: pass path/to/file.py:Class."
        )
    module = load_file(path)
    defined = {name: value for name, value in vars(module).items() if name[0] != "_" and callable(value)}
    own = {name: value for name, value in defined.items() if getattr(value, "__module__", None) == module.__name__}
    found = {name: value for name, value in own.items() if accepts(value)}
    if not name and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        wanted = f"{noun} '{name}'" if name else f"one {noun} that is meant without a name"
        raise UsageError(
            f"The file {path} has no {wanted} ({noun}s in it: {', '.join(found) or 'none'})."
            f"{did_you_mean(name, found)} Pass {stem}.py:{next(iter(found), 'Class')}."
        )
    return found[name], path


def absolute(reference: str) -> str:
    """Return `path/to/file.py:Class`, perhaps after `gym:`, with an absolute path; a name stays."""
    library = _OF_FILES if reference.startswith(_OF_FILES) else ""
    path, dot_py, name = reference.removeprefix(library).partition(".py:")
    return f"{library}{Path(path).expanduser().absolute()}{dot_py}{name}" if dot_py else reference


def load(reference: str) -> Any:  # noqa: ANN401  Any attribute.
    """Import what `module:attribute` or `/path/to/file.py:attribute` names."""
    where, _, attribute = reference.rpartition(":")
    module = load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    return getattr(module, attribute)


def load_file(path: Path) -> ModuleType:
    """Import a user's file under a name made from its path, so that it is imported once in each process.

    Raises:
        UsageError: The file raised while it was imported.
    """
    # The same name in every process: Warp names its compiled kernels after the module.
    name = f"shoal_user_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"The file {path} cannot be imported as Python: pass path/to/file.py:Class.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The file may import its neighbours, but none of them replaces a library.
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(
            f"The file {path} failed when it was imported ({type(error).__name__}: {error}): look at "
            f"{line_in(path.parent, error) or 'it'}."
        ) from error
    return module


def line_in(folder: Path, error: Exception) -> str | None:
    """Return the innermost line of a file in `folder` that an exception has passed, and its function, in words."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).parent == folder]
    if not frames:
        return None
    inside = "" if frames[-1].name == "<module>" else f", in {frames[-1].name}()"
    return f"line {frames[-1].lineno} of {frames[-1].filename}{inside}"
