"""House rules that every module of the package keeps, and that no linter knows in this form."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import shoal

PACKAGE = Path(shoal.__file__).parent
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
MAX_LINES = 400
"""Past this, look for the second room inside the module."""
ALLOWED = sys.stdlib_module_names | {"shoal", "_typeshed"}
"""What words and wishes may import."""


@functools.cache
def parse(module: str) -> ast.Module:
    """The syntax tree of a module of the package."""
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"), filename=module)


def lines_of_calls(module: str, name: str) -> list[int]:
    """The lines in which a module calls a function by its name."""
    calls = (node for node in ast.walk(parse(module)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]


def imported_packages(tree: ast.Module) -> set[str]:
    """The top-level packages that a module imports anywhere, in functions too."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def test_each_module_opens_with_a_docstring() -> None:
    assert [module for module in MODULES if not ast.get_docstring(parse(module))] == []


def test_each_module_keeps_its_budget_of_lines() -> None:
    lines = {module: len((PACKAGE / module).read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {module: count for module, count in lines.items() if count > MAX_LINES} == {}


def test_no_module_asserts_anything() -> None:
    # `python -O` removes assertions, and a user reads nothing in a bare one.
    found = {
        module: [node.lineno for node in ast.walk(parse(module)) if isinstance(node, ast.Assert)] for module in MODULES
    }
    assert {module: lines for module, lines in found.items() if lines} == {}


def test_only_the_command_line_prints() -> None:
    printing = {module: lines for module in MODULES if (lines := lines_of_calls(module, "print"))}
    assert {module: lines for module, lines in printing.items() if not module.startswith("cli/")} == {}


def test_words_and_wishes_need_only_the_standard_library() -> None:
    modules = [module for module in MODULES if module.startswith(("config/", "errors.py", "logs.py"))]
    foreign = {module: imported_packages(parse(module)) - ALLOWED for module in modules}
    assert {module: names for module, names in foreign.items() if names} == {}
