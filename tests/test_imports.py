"""Imports only go down: a table of packages, held against every import in the code."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from velogan.objectives.base import Phase
from velogan.search.method import METHODS

ROOT = Path(__file__).resolve().parents[1]
FOUNDATION = {"types", "files"}
"""What every package may import."""
MAY_IMPORT_TABLE = """
types
files
kernels
networks
objectives
metrics
data        metrics.labels
observe
store
methods     networks objectives
search      networks objectives methods
engine      objectives.base observe
config      networks objectives.classes data.config methods search.method engine
recipes     search.method config
translate   kernels networks data store
serve       data translate
interchange networks data store config translate
report      networks.cells networks.genotype search.history
evaluation  networks metrics data observe store methods config translate report.scores
scale       networks objectives data observe methods engine config translate
training    kernels networks objectives data observe store methods search engine config translate interchange \
            report evaluation
measure     objectives data observe methods engine config recipes report training
sweep       networks data observe store methods search engine config recipes translate report evaluation training
api         networks data observe engine.device config recipes translate interchange evaluation training
cli         networks data observe store methods search engine config recipes translate serve interchange report \
            evaluation scale training measure sweep
__main__    cli
"""
MAY_IMPORT = {name: set(allowed) for name, *allowed in map(str.split, MAY_IMPORT_TABLE.strip().splitlines())}
"""By package: the packages and modules that it may import, besides itself."""

SUBPACKAGES: dict[str, set[str]] = {
    "data.pictures": {"data.config"},
    "data.rendered": {"data.atomic_dirs", "data.pictures"},
    "data.sets": {"data"},
}
"""What a subpackage may import of its own package, besides itself."""


def _top(module: str) -> str:
    """`velogan.engine.step` is in engine; the package itself holds no more than the version."""
    return module.split(".")[1] if "." in module else ""


def _imports(source: str, *, package: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """(line, our module) of every import, wherever in the file it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            hits = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inner = [f"{base}.{alias.name}" for alias in node.names]
            hits = [name if name in modules else base for name in inner]
        else:
            continue
        for name in hits:
            if name.split(".")[0] == "velogan":
                yield node.lineno, name


def _modules() -> dict[str, Path]:
    module_paths = {}
    for path in sorted((ROOT / "velogan").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module_paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return module_paths


def _wrong(module: str, source: str, *, package: str, modules: set[str]) -> list[str]:
    """The arrows of one file that run up."""
    top_package = _top(module)
    if not top_package:
        return []
    inner = ".".join(module.split(".")[1:3])
    own = {inner} | SUBPACKAGES[inner] if inner in SUBPACKAGES else {top_package}
    allowed = [f"velogan.{name}" for name in MAY_IMPORT[top_package] | FOUNDATION | own]
    return [
        f"{module}:{line} imports {name}"
        for line, name in _imports(source, package=package, modules=modules)
        if name != "velogan" and not any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)
    ]


def test_imports_only_go_down():
    modules = _modules()
    wrong = []
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        wrong += _wrong(module, path.read_text(), package=package, modules=set(modules))
    assert not wrong, "\n".join(wrong)


def test_imports_are_at_most_nine_levels_deep():
    modules, below = _modules(), {}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for _, name in _imports(path.read_text(), package=package, modules=set(modules)):
            if _top(name) != _top(module):
                below.setdefault(_top(module), set()).add(_top(name))

    def height(top_package: str) -> int:
        return 1 + max((height(other) for other in below.get(top_package, set()) - {""}), default=0)

    assert height("cli") <= 9


def _names_a_method(source: str, kinds: set[str]) -> list[int]:
    """Lines whose code names a method: by its kind in a text, or by its class or file. Documentation may."""
    tree, words = ast.parse(source), {kind.lower() for kind in kinds}
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    hits = []
    for node in ast.walk(tree):
        texts: list[str] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            texts = [] if node.value.startswith("https://") else re.findall(r"\w+", node.value)
        elif isinstance(node, ast.Name):
            texts = [node.id]
        elif isinstance(node, ast.Attribute):
            texts = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            texts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        hits += [getattr(node, "lineno", 0)] * any(text.lower() in words for text in texts)
    return hits


def test_nothing_outside_methods_names_a_method():
    wrong = []
    for module, path in _modules().items():
        # one of the fields that unknown_flags lists is called like a method
        if _top(module) not in ("methods", "search", "recipes") and module != "velogan.cli.unknown_flags":
            wrong += [f"{module}:{line}" for line in _names_a_method(path.read_text(), set(METHODS))]
    assert not wrong, "\n".join(wrong)
    for source in ('kind = "onepair"', "from velogan.methods.cyclegan import X", 'print(f"by cyclegan")', "OnePair()"):
        assert _names_a_method(source, set(METHODS)), source


def test_class_names_are_unique():
    packages: dict[str, set[str]] = {}
    for module, path in _modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                packages.setdefault(node.name, set()).add(_top(module))
    assert not {name: where for name, where in packages.items() if len(where) > 1}


def test_sizes_stay_small():
    assert len(dataclasses.fields(Phase)) <= 6, "Phase wants one more field for one method"
    assert len(_modules()["velogan.training.run"].read_text().splitlines()) <= 240, "run.py does more than tell a run"
    assert not [name for name in MAY_IMPORT["recipes"] if name.startswith("engine")], "a recipe imports from engine"
    top = {path.stem for path in (ROOT / "velogan").glob("*.py")} - {"__init__", "__main__"}
    assert top <= {"api", "config", "recipes", "types", "files"}, "a new module at the top"


LATE = {
    "kernels.gpu": {"kernels.triton_norms"},
    "data.pictures.scans": {"data.pictures.dicom", "data.pictures.nifti"},
    "serve.server": {"serve.access", "serve.app"},
}
"""Modules that need an extra, and who imports them when they are asked for."""


def test_imports_are_at_the_top_except_in_commands():
    hits = []
    for module, path in _modules().items():
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or _top(module) in (
                "cli",
                "api",
                "",
            ):
                continue
            for node in ast.walk(function):
                name = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
                if name.startswith("velogan.") and name[8:] not in LATE.get(module[8:], set()):
                    hits.append(f"{module} imports {name} in {function.name}")
    assert not hits, "\n".join(hits)
