"""Every sentence that Shoal refuses or fails with stands in docs/troubleshooting.md, and none that it no longer says.

The page quotes sentences in Markdown's block quotes, with ``…`` where a value stands. The sources' own sentences are
the strings that are given to errors.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

import pytest
from support.documented import ROOT

from shoal import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "troubleshooting.md"
ERRORS = {name for name in vars(errors) if name.endswith("Error")}
SPEAKERS = ERRORS | {"ERRORS", "kind", "_refuse", "error", "OSError"}
"""What makes an error of its first argument: errors by name or out of a table, functions, and a method."""
WRITERS = {"_difference"}
"""Functions that return a sentence."""
FINDERS = {"problem", "note"}
"""What makes a finding of a topic, of what is true, and of what to do."""
FOUND_BEFORE_TRAINING = {f"src/shoal/checks/{name}.py" for name in ("preflight", "resources")}
"""The modules whose findings `train` refuses with, or prints; those of the doctor are on its own page."""


def sentence(node: ast.expr) -> str | None:
    """A string of the sources with ``…`` for each value in it; None for what is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return "".join(sentence(side) or "…" for side in (node.left, node.right))
    return None


def finding(call: ast.Call) -> str | None:
    """The sentence of a finding."""
    truth, *remedy = [sentence(each) for each in call.args[1:3]]
    return truth and (f"{truth}: {remedy[0]}." if remedy else f"{truth}.")


def os_error(call: ast.Call, module: ast.Module) -> str:
    """The sentence of an error of the operating system: what cannot be done, why, and the remedy."""
    before = [node for node in ast.walk(module) if isinstance(node, ast.Assign) and node.lineno < call.lineno]
    names = {ast.unparse(node.targets[0]): node.value for node in sorted(before, key=lambda node: node.lineno)}
    what, remedy = [sentence(names[each.id] if isinstance(each, ast.Name) else each) for each in call.args[:2]]
    return f"{what} (…): {remedy}."


def sentences_of(source: str, *, with_findings: bool = False) -> Iterator[tuple[int, str]]:
    """The sentences of one module, each with its line."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "refusing_os_errors":
            yield node.lineno, os_error(node, module)
        if with_findings and isinstance(node, ast.Call) and ast.unparse(node.func) in FINDERS:
            found = finding(node)
            if found:
                yield node.lineno, found
        said: list[ast.expr | None] = []
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"message", "what"}:
            said.append(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func).partition("[")[0].split(".")[-1] in SPEAKERS:
            said += node.args[:1]
        if isinstance(node, ast.FunctionDef) and node.name in WRITERS:
            said += [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
        for each in said:
            text = sentence(each) if each else None
            if text is not None and re.search(r"[A-Za-z]{2}", text):  # What is all values is said in full elsewhere.
                yield each.lineno if each else 0, text


@functools.cache
def all_sentences() -> dict[str, str]:
    """Every sentence of the sources, by its place."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for line, text in sentences_of(path.read_text(encoding="utf-8"), with_findings=name in FOUND_BEFORE_TRAINING):
            found[f"{name}:{line}"] = text
    return found


def quoted() -> list[str]:
    """Every sentence that the page quotes."""
    quotes = re.findall(r"(?:^> .*\n?)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [" ".join(line.removeprefix("> ") for line in quote.splitlines()) for quote in quotes]


def is_quote_of(quote: str, said: str) -> bool:
    """Whether a quotation, with ``…`` for anything, is made from a sentence of the sources."""
    return pattern_of(quote).match(said) is not None


@functools.cache
def pattern_of(quote: str) -> re.Pattern[str]:
    """What the sentences of a quotation look like."""
    parts = [re.escape(part) for part in quote.split("…")]
    return re.compile(".*?".join(parts), re.DOTALL)


def test_each_sentence_of_the_sources_is_explained() -> None:
    quotes = quoted()
    said = all_sentences()
    missing = {place: text for place, text in said.items() if not any(is_quote_of(quote, text) for quote in quotes)}
    assert missing == {}, f"Add to {PAGE.name}, behind a >."


def test_each_quoted_sentence_is_said_somewhere() -> None:
    said = set(all_sentences().values())
    assert [quote for quote in quoted() if not re.search(r"[A-Za-z]{2}", quote)] == []
    assert [quote for quote in quoted() if not any(is_quote_of(quote, text) for text in said)] == []


def test_sentences_are_found_in_a_source() -> None:
    source = """
def f(name):
    if name:
        message = f"No task '{name}'." + hint(name)
        raise UsageError(message)
    _refuse("is empty")
    raise WorkerLostError(f"Lost {name}") from None
"""
    assert [text for _, text in sentences_of(source)] == ["No task '…'.…", "is empty", "Lost …"]


def test_errors_of_the_operating_system_are_sentences_too() -> None:
    source = """
remedy = f"remove {other}"
with refusing_os_errors(f"{file} cannot be written", remedy):
    write()
"""
    assert [text for _, text in sentences_of(source)] == ["… cannot be written (…): remove …."]


def test_findings_are_sentences_too() -> None:
    source = """
problem(topic, f"{size} is left", "make room")
note("disk", "Nobody knows")
note(found.topic, found.truth)
ok("disk", "all is well")
"""
    found = [text for _, text in sentences_of(source, with_findings=True)]
    assert found == ["… is left: make room.", "Nobody knows."]
    assert list(sentences_of(source)) == []


@pytest.mark.parametrize(
    ("quote", "is_one"),
    [
        ("No task '…'. Did you mean '…'?", False),
        ("No task '…'.", True),
        ("No … '…'.", True),
        ("no task", False),
        ("task '…'.", False),
    ],
)
def test_a_quotation_begins_as_its_sentence_does(quote: str, *, is_one: bool) -> None:
    assert is_quote_of(quote, "No task '…'.…") is is_one
