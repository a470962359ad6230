"""What callbacks of a fit collect comes back, or a fresh run and a resume name it, with the line that keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.kills.judge import Expected
from tests.public.keras.proof import prove_exact

pytestmark = pytest.mark.crash

SCRIPT = "tests.public.keras.unkept:curve"


def test_a_list_of_the_module_that_a_callback_appends_to_is_named(torch: Lab, tmp_path: Path) -> None:
    text = "losses starts over at each start. To keep it: make it an attribute of a callback of this fit"
    expected = Expected(exact=None, because=text, is_equal=False, warns=(text,))
    last = prove_exact(torch, SCRIPT, tmp_path, [["boundary.after", 6]], expected=expected, keeps=False)
    assert [note for note in last.notes if "over at each start" in note] == [text]


def test_the_line_keeps_it(torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, SCRIPT, tmp_path, [["boundary.after", 6]], keeps=True)
