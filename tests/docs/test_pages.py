"""What the pages say of the repository is so: links, the annotated tree, and the generated command line reference."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING

import pytest
from support.documented import ROOT, pages

if TYPE_CHECKING:
    from pathlib import Path

README = ROOT / "README.md"
PACKAGE = ROOT / "src" / "shoal"
WHOLE = ("tasks/cartpole", "bench", "cli")
"""Directories that the README's tree tells in one line."""
each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))


def links_of(text: str) -> list[str]:
    """The targets of a page's links and pictures, without those to other sites."""
    # A link's text may break over lines.
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@each_page
def test_links_lead_to_files_that_exist(page: Path) -> None:
    targets = [link.partition("#")[0] for link in links_of(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if target and not (page.parent / target).is_file()] == []


def test_links_are_found() -> None:
    text = "[a](b.md) ![two\nlines](c.svg) [site](https://example.org/d.md) `[0]` [e](f.md#g)"
    assert links_of(text) == ["b.md", "c.svg", "f.md#g"]


def tree_of(text: str) -> set[str]:
    """The files and directories of the README's annotated tree, as paths below the package."""
    found: set[str] = set()
    above: list[str] = []
    for line in text.partition("src/shoal/\n")[2].partition("```")[0].splitlines():
        drawn, name = re.match(r"([│├└─ ]*)(\S+)", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        del above[len(drawn) // 4 - 1 :]
        above.append(name.rstrip("/"))
        found.add("/".join(above))
    return found


def test_the_tree_in_the_readme_has_every_module() -> None:
    told = tree_of(README.read_text(encoding="utf-8"))
    modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    modules = {name for name in modules if not name.startswith(tuple(f"{whole}/" for whole in WHOLE))}
    assert {name for name in told if name.endswith(".py")} == modules
    assert {name for name in told if not name.endswith(".py")} >= set(WHOLE)


def test_the_command_line_reference_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "docs" / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render() == module.PAGE.read_text(encoding="utf-8"), "Run: python docs/generate_cli.py"
