"""What the site does to the pages: README is its home, and files that are no pages are named instead of linked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parent.parent
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Add README as the home page."""
    text = (_ROOT / "README.md").read_text()
    text = re.sub(r"\]\((?!docs/|[a-z]+:)([^)]+)\)", r"](../\1)", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links to files of the repository by their names."""
    return _OUTSIDE.sub(_name, markdown)


def _name(link: re.Match[str]) -> str:
    text, path = link.groups()
    return text if path.rstrip("/") in text else f"{text} (`{path.rstrip('/')}`)"
