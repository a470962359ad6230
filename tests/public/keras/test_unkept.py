"""What callbacks of a fit collect comes back, or a fresh run and a resume name it, with the line that keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact, run_killed

pytestmark = pytest.mark.crash

SCRIPT = "tests.public.keras.unkept:curve"


def test_a_list_of_the_module_that_a_callback_appends_to_is_named(torch: Lab, tmp_path: Path) -> None:
    text = "losses starts over at each start. To keep it: make it an attribute of a callback of this fit"
    whole, last = run_killed(torch, SCRIPT, tmp_path, [["boundary.after", 6]], keeps=False)
    for life in (whole, last):
        assert [note for note in life.notes if "over at each start" in note] == [text]
    assert last.exact is True, "the state is, and the word for it says no more"
    assert {path.partition("]")[0] for path in last.differences(whole)} == {"['losses'"}


def test_the_line_keeps_it(torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, SCRIPT, tmp_path, [["boundary.after", 6]], keeps=True)


def test_a_model_beside_the_fit_is_named_and_its_variables_come_back_as_attributes(torch: Lab, tmp_path: Path) -> None:
    script = "tests.public.keras.unkept:target"
    line = "make each variable of average.variables an attribute of a callback of this fit, by setattr"
    whole, last = run_killed(torch, script, tmp_path / "lost", [["boundary.after", 6]], keeps=False)
    for life in (whole, last):
        assert [line in note for note in life.notes if "over at each start" in note] == [True], life.notes
    assert {path.partition("]")[0] for path in last.differences(whole)} == {"['average'"}
    prove_exact(torch, script, tmp_path / "kept", [["boundary.after", 6]], keeps=True)
