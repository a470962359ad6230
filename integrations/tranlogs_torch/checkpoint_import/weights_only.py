"""torch.load(weights_only=True), with a few more classes allowed and with errors that fit in one line."""

from __future__ import annotations

import argparse
import pathlib
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from torch.serialization import get_safe_globals, safe_globals

# Classes that only hold values, and that scripts save beside their weights: to construct one and to set its attributes has no
# other effect. Python 3.13 names the classes of paths differently, and a WindowsPath can be constructed on Windows alone.
_PATHS = {"PosixPath": pathlib.PosixPath, "WindowsPath": pathlib.PureWindowsPath}
_ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace,
    types.SimpleNamespace,
    *((path, f"{module}.{name}") for name, path in _PATHS.items() for module in ("pathlib", "pathlib._local")),
]


def load(file: Path | IO[bytes]) -> Any:
    """Return the content of a file, with all tensors on the CPU. Nothing in the file is executed.

    The file is not mapped into memory (`mmap=True`): torch would then return wrong values, without an error, for an archive
    that is compressed or has an entry of the wrong size.
    """
    missing = [one for one in _ALLOWED if one not in get_safe_globals()]  # leaving the context would remove the script's own
    with safe_globals(missing):
        return torch.load(file, map_location="cpu", weights_only=True)


def reason(error: Exception) -> str:
    """Return why torch.load refused or failed, in one line. torch's own message is several paragraphs long."""
    text = str(error)
    if found := re.search(r"GLOBAL (\S+)", text):
        return f"it refers to {found[1]}, which torch.load(weights_only=True) does not allow"
    detail = re.search(r"WeightsUnpickler error:\s*(.+)", text)
    first = detail[1] if detail else text.partition("\n")[0].partition(". ")[0]
    return f"torch.load(weights_only=True) cannot read it ({type(error).__name__}: {first.strip()})"
