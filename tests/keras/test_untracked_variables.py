"""Variables that a loop writes and the run does not know are found without touching anything else that is alive."""

from __future__ import annotations

from tests.keras.lab import Lab


def test_changed_variables_are_found_and_no_other_object_is_asked_for_its_class(torch: Lab) -> None:
    """PyTorch has an object that warns when its class is asked for."""
    said = torch.value("scenario.untracked.search")
    assert said["found"] == [[], ["one"], [], ["late"], []]
    assert (said["warned"], said["asked"]) == ([], 0)
