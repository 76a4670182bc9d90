"""Names are the field's: everyday words that once stood for technical terms are rejected as identifiers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

WORDS = """one found made given way ways asked wanted told said say kept whole seen mine theirs why what how mend aside
    beside ends took began ago dear dearest look judged there"""
REJECTED = frozenset(WORDS.split())
"""Use a noun instead: the element in a loop, `result`, `inputs`, `direction`, `reason`, `tmp_path`."""

NOT_YET = {"tests": 199}
"""Numbers of such names in folders that are not finished; they only shrink."""


def _definitions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _rejected(source: str) -> list[str]:
    return [name for name in _definitions(ast.parse(source)) if name.strip("_").lower() in REJECTED]


def test_code_has_no_rejected_names():
    rejected = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("velogan", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in _rejected(path.read_text(encoding="utf-8"))
    ]
    assert not rejected, "\n".join(rejected)


@pytest.mark.parametrize("folder", NOT_YET)
def test_rejected_names_elsewhere_become_fewer(folder: str):
    count = sum(len(_rejected(path.read_text(encoding="utf-8"))) for path in (ROOT / folder).rglob("*.py"))
    assert count <= NOT_YET[folder]


def _function_docstrings(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (text := ast.get_docstring(node)):
            decorators = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Name)]
            if not any(decorator.id in ("property", "cached_property") for decorator in decorators):
                yield node.name, text


def test_function_docstrings_start_with_a_verb():
    """Ruff's D401 knows the mood of verbs only; this rejects articles, pronouns, adverbs and prepositions."""
    words = "The A An What Whether How Where When So Of By In Every All No As Only That Which To If With"
    nouns = [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path in sorted((ROOT / "velogan").rglob("*.py"))
        if path.name != "recipes.py"  # whose docstrings are the descriptions of presets in help texts
        for name, text in _function_docstrings(path.read_text(encoding="utf-8"))
        if text.split()[0] in words.split()
    ]
    assert not nouns, "\n".join(nouns)
