"""The forms of what a user reads are told from others, and from noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.public.words import Heard

RUN = Path("/runs/1")
RESUMED = "recovered to step 12 (epoch 2, after 12 batches, checkpoint 7 + 5 replayed, 0.45 s, {})"


def test_lines_of_other_forms_and_repetitions_are_found() -> None:
    Heard([f"TranLogs: {RUN} goes on at epoch 2, batch 3: {RESUMED.format('bit-exact')}"]).demand_forms(RUN)
    with pytest.raises(AssertionError, match="not of a known form"):
        Heard([f"TranLogs: {RUN} continues: {RESUMED.format('bit-exact')}"]).demand_forms(RUN)
    with pytest.raises(AssertionError, match="said twice"):
        Heard(["TranLogs: " + RESUMED.format("not verified"), "  so it is"], [f"{RUN}: so it is"]).demand_forms(RUN)


def test_a_warning_without_need_and_a_missing_one_are_found() -> None:
    heard = Heard(warnings=[f"{RUN}: the sky is blue"])
    heard.demand_quiet(["sky"])
    with pytest.raises(AssertionError, match="the sky is blue"):
        heard.demand_quiet([])
    with pytest.raises(AssertionError, match="rain"):
        heard.demand_quiet(["sky", "rain"])


@pytest.mark.parametrize(("said", "exact"), [("bit-exact", None), ("not verified", True), ("NOT exact from step 3", True)])
def test_a_line_that_is_not_the_last_word_is_found(said: str, exact: bool | None) -> None:
    heard = Heard(["TranLogs: " + RESUMED.format(said)])
    with pytest.raises(AssertionError, match="the last word is"):
        heard.demand_verdict(exact, RUN)
