"""Every package on disk is listed in setup.cfg, and importing the core imports no framework. For the wheel: test_wheel.py."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import tranlogs

ROOT = Path(__file__).resolve().parent.parent


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def packages_on_disk() -> set[str]:
    found = set()
    for root in (ROOT, ROOT / "integrations", ROOT / "monitor"):
        for init in root.glob("tranlogs*/**/__init__.py"):
            found.add(".".join(init.parent.relative_to(root).parts))
    return found


def test_setup_cfg_lists_every_package_that_is_on_disk() -> None:
    listed = set(setup_cfg()["options"]["packages"].split())
    assert listed == packages_on_disk()


def test_importing_the_core_imports_no_framework() -> None:
    code = (
        "import sys, tranlogs, tranlogs.journal, tranlogs.recovery, tranlogs.verify;"
        "print([m for m in ('torch', 'tensorflow', 'keras', 'matplotlib') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


def test_public_names_are_sorted_and_there() -> None:
    assert list(tranlogs.__all__) == sorted(tranlogs.__all__)
    assert all(hasattr(tranlogs, name) for name in tranlogs.__all__)
