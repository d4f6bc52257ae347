"""House rules that every module of the package keeps, and that no linter knows in this form."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import shoal

PACKAGE = Path(shoal.__file__).parent
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
MAX_LINES = 400
"""Past this, look for the second room inside the module."""

each_module = pytest.mark.parametrize("module", MODULES)


def parse(module: str) -> ast.Module:
    """The syntax tree of a module of the package."""
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"), filename=module)


def imported_packages(tree: ast.Module) -> set[str]:
    """The top-level packages that a module imports anywhere, in functions too."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


@each_module
def test_module_opens_with_a_docstring(module: str) -> None:
    assert ast.get_docstring(parse(module))


@each_module
def test_module_keeps_its_budget_of_lines(module: str) -> None:
    assert len((PACKAGE / module).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@each_module
def test_module_asserts_nothing(module: str) -> None:
    # `python -O` removes assertions, and a user reads nothing in a bare one.
    assert [node.lineno for node in ast.walk(parse(module)) if isinstance(node, ast.Assert)] == []


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith("cli/")])
def test_only_the_command_line_prints(module: str) -> None:
    calls = (node for node in ast.walk(parse(module)) if isinstance(node, ast.Call))
    assert [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"] == []


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(("config/", "errors.py", "logs.py"))])
def test_words_and_wishes_need_only_the_standard_library(module: str) -> None:
    assert imported_packages(parse(module)) <= sys.stdlib_module_names | {"shoal", "_typeshed"}
