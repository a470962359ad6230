"""The picture of the packages in docs/architecture.md, drawn from the imports in the source.

    python experiments/structure_picture.py            # writes the picture into docs/architecture.md
    python experiments/structure_picture.py --check    # exits with status 1 if the page shows another picture

An arrow points from a package to a package that it imports. An arrow is left out where a longer path leads to the same package.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
SOURCE_ROOTS = (ROOT, ROOT / "integrations", ROOT / "monitor")
BEGIN, END = (f"<!-- made by `python experiments/structure_picture.py`: {edge} -->" for edge in ("begin", "end"))

Graph = Mapping[str, set[str]]


def read_modules() -> dict[str, Path]:
    """Return the file of each product module by the module's full name."""
    modules = {}
    for root in SOURCE_ROOTS:
        for path in sorted(root.glob("tranlogs*/**/*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def read_graph() -> dict[str, set[str]]:
    """Return which package imports which others; imports inside functions and under TYPE_CHECKING count."""
    modules = read_modules()
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        package = package_of(name)
        if package is None:
            continue
        imported = {package_of(other) for other in imports_of(name, path, modules)}
        graph.setdefault(package, set()).update(other for other in imported if other not in (None, package))
    return graph


def package_of(module: str) -> str | None:
    """Return the box that a module belongs to; None for `tranlogs` itself, which only names what others define."""
    top, *below = module.split(".")
    if top != "tranlogs":
        return top
    return f"{top}.{below[0]}" if below and below[0] != "__main__" else None


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


def reachable(graph: Graph, start: str, without: str) -> set[str]:
    """Return all packages that a path leads to, the direct arrow to `without` excepted."""
    found: set[str] = set()
    waiting = graph[start] - {without}
    while waiting:
        package = waiting.pop()
        if package not in found:
            found.add(package)
            waiting |= graph[package]
    return found


def draw(graph: Graph) -> str:
    """Return the picture as a Mermaid flowchart; the packages of the core share a frame."""
    core = [package for package in sorted(graph) if package.startswith("tranlogs.")]
    arrows = {}
    for package in sorted(graph):
        others = [other for other in sorted(graph[package]) if other not in reachable(graph, package, without=other)]
        if others:
            arrows[package] = f"{node(package)} --> {' & '.join(map(node, others))}"
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {line}" for package, line in arrows.items() if package not in core]
    lines += ["    subgraph tranlogs", *(f"        {arrows.get(package, node(package))}" for package in core), "    end", "```"]
    return "\n".join(lines)


def node(package: str) -> str:
    """Return the name of a package in the picture: without the prefix that the frame shows."""
    return package.removeprefix("tranlogs.")


def with_picture(page: str, picture: str) -> str:
    """Return the page with this picture between the two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE}: the marks {BEGIN!r} and {END!r} are missing")
    return f"{before}{BEGIN}\n{picture}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with status 1 if the page is out of date")
    is_check = parser.parse_args().check
    page = PAGE.read_text()
    made = with_picture(page, draw(read_graph()))
    if made != page and is_check:
        print(f"{PAGE}: the picture is out of date. Run `python experiments/structure_picture.py`", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
