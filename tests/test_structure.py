"""The structure of the product: no circles of imports, no framework in the core, and all packages in setup.cfg."""

from __future__ import annotations

import ast
import configparser
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import tranlogs
import tranlogs.ranks
import tranlogs.records
import tranlogs.training

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = (ROOT, ROOT / "integrations", ROOT / "monitor")

Graph = Mapping[str, set[str]]


@functools.cache
def read_modules() -> dict[str, Path]:
    """Return the file of each product module by the module's full name."""
    modules = {}
    for root in SOURCE_ROOTS:
        for path in sorted(root.glob("tranlogs*/**/*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imports_of(module: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the product modules that one module imports."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names = [full if (full := f"{base}.{alias.name}") in modules else base for alias in node.names]
        else:
            continue
        yield from (name for name in names if name in modules)


@functools.cache
def read_imports() -> dict[str, set[str]]:
    """Return which modules each module imports; imports inside functions and under TYPE_CHECKING count."""
    modules = read_modules()
    return {name: set(imports_of(name, path, modules)) - {name} for name, path in modules.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Return the names that import each other in a circle (Tarjan's strongly connected components)."""
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        waiting.append(name)
        for other in sorted(graph[name]):
            if other not in numbers:
                visit(other)
            if other in waiting:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == numbers[name]:
            place = waiting.index(name)
            component = sorted(waiting[place:])
            del waiting[place:]
            if len(component) > 1:
                found.append(component)

    for name in graph:
        if name not in numbers:
            visit(name)
    return found


def merged(graph: Graph, box_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Return the graph of boxes of modules."""
    boxes: dict[str, set[str]] = {}
    for name, others in graph.items():
        box = box_of(name)
        boxes.setdefault(box, set()).update({box_of(other) for other in others} - {box})
    return boxes


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert circles(graph) == [["a", "b", "c"]]
    assert circles(merged({"a.x": {"b.y"}, "b.y": set(), "b.z": {"a.x"}}, lambda name: name[0])) == [["a", "b"]]


def test_no_module_imports_another_in_a_circle() -> None:
    assert circles(read_imports()) == []


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_package_imports_another_in_a_circle(depth: int) -> None:
    """A package and what lies in it count as one box down to a depth; a module beside packages is a box of its own."""
    graph = read_imports()
    packages = {name for name, path in read_modules().items() if path.name == "__init__.py"}

    def box_of(name: str) -> str:
        parts = name.split(".")
        box = ".".join(parts[: depth + 1])
        return f"{box} itself" if box == name and name in packages else box  # its __init__ names what others in it define

    assert circles(merged(graph, box_of)) == []


def test_setup_cfg_lists_every_package_that_is_on_disk() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    inits = [(root, init) for root in SOURCE_ROOTS for init in root.glob("tranlogs*/**/__init__.py")]
    found = {".".join(init.parent.relative_to(root).parts) for root, init in inits}
    assert set(parser["options"]["packages"].split()) == found


def test_importing_the_core_imports_no_framework() -> None:
    code = (
        "import sys, tranlogs, tranlogs.journal, tranlogs.recovery, tranlogs.verify;"
        "print([m for m in ('torch', 'tensorflow', 'keras', 'matplotlib') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


def test_public_names_are_sorted_and_there() -> None:
    assert list(tranlogs.__all__) == sorted(tranlogs.__all__)
    assert all(hasattr(tranlogs, name) for name in tranlogs.__all__)


# The face of the core: what an integration may import, and nothing more.


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
