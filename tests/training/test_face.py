"""The face of the core: what an integration may import, and nothing more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tranlogs.ranks
import tranlogs.records
import tranlogs.training

ROOT = Path(__file__).parents[2]
INTEGRATIONS = ("tranlogs_torch", "tranlogs_keras", "tranlogs_demo")
FACE = {"tranlogs", "tranlogs.training", "tranlogs.records", "tranlogs.ranks"}


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import from the core, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names if node.module.split(".")[0] == "tranlogs")
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "tranlogs")


def all_imports() -> list[tuple[Path, str, str]]:
    files = [path for name in INTEGRATIONS for path in (ROOT / "integrations" / name).rglob("*.py")]
    return [(path, module, name) for path in files for module, name in imported(path)]


def test_an_integration_imports_only_the_face_and_the_base() -> None:
    found = [(path, module) for path, module, _ in all_imports() if module.split(".")[:2] != ["tranlogs", "base"]]
    assert [(str(path), module) for path, module in found if module not in FACE] == []


def test_each_public_name_is_imported_by_an_integration() -> None:
    imports = {(module, name) for _, module, name in all_imports()}
    for module in (tranlogs.training, tranlogs.records, tranlogs.ranks):
        assert [name for name in module.__all__ if (module.__name__, name) not in imports] == []
