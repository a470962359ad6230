"""The documentation holds together: links and anchors resolve, examples compile, named files exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.keras.conftest import find_lab
from tests.keras.lab import Labs
from tranlogs.base.notes import Code

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:tests|tranlogs|integrations|monitor|experiments|docs|examples)/[a-z0-9_./-]*)`")


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names


def relative_links(page: Path) -> Iterator[tuple[str, str]]:
    """Path and anchor of each link that leads to a file of the project."""
    for target in LINK.findall(prose(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve_and_examples_compile_and_named_files_exist(page: Path) -> None:
    broken = []
    for path, anchor in relative_links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert not broken
    for _, language, code in FENCE.findall(page.read_text()):
        if language == "python":
            ast.parse(textwrap.dedent(code))
    named = {name.rstrip("/") for name in FILE.findall(prose(page))}
    assert not [name for name in sorted(named) if not any((ROOT / f"{name}{suffix}").exists() for suffix in ("", ".py"))]


def scripts() -> list[Any]:
    """The Python blocks that are whole scripts: they import a framework, and recover."""
    return [
        pytest.param(textwrap.dedent(code), id=page.stem)
        for page in PAGES
        for _, language, code in FENCE.findall(page.read_text())
        if language == "python" and code.startswith("import ") and ".recover()" in code and "    ..." not in code
    ]


@pytest.mark.parametrize("script", scripts())
def test_scripts_of_the_pages_run_as_they_stand(script: str, keras_labs: Labs, tmp_path: Path) -> None:
    """In a process that has Keras imported, with the backend that Keras takes by default, and PyTorch at hand."""
    (tmp_path / "script.py").write_text(script)
    done = find_lab(keras_labs, "tensorflow").run("lab.run_script", file=str(tmp_path / "script.py"))
    assert done.code == 0, done.output
    assert "step 0" in done.output


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists()
    assert "LoggedOptimizer" in (tmp_path / "site" / "api" / "index.html").read_text()


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / path).resolve() for path, _ in relative_links(page) if path.endswith(".md")]
        waiting += [target for target in targets if target.exists()]
    assert set(PAGES) - reached == set()


def arguments_of(source: Path, name: str) -> list[str]:
    """The arguments of a class, read without importing its framework."""
    tree = ast.parse(source.read_text())
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    init = next(node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return [argument.arg for argument in (*init.args.args, *init.args.kwonlyargs) if argument.arg != "self"]


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", page.read_text().split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_pytorch_page_lists_every_argument() -> None:
    arguments = arguments_of(ROOT / "integrations/tranlogs_torch/optimizer.py", "LoggedOptimizer")
    rows = re.findall(r"^(`[^|]*`) \|", section(ROOT / "docs/pytorch.md", "Arguments"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(arguments)


def test_keras_page_lists_every_argument() -> None:
    arguments = arguments_of(ROOT / "integrations/tranlogs_keras/callback.py", "TranLogsCallback")
    listed = re.findall(r"`(\w+)=", section(ROOT / "docs/keras.md", "Settings"))
    assert sorted({"run", *listed}) == sorted(arguments)


def test_operations_page_lists_every_code_of_a_note() -> None:
    table = (ROOT / "docs/operations.md").read_text().partition("### Notes of a report")[2].partition("\n## ")[0]
    assert re.findall(r"^`([a-z-]+)` \|", table, re.MULTILINE) == sorted(get_args(Code))
