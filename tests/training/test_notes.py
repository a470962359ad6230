"""A note is a text with a code."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from tranlogs.base.notes import Note, coded
from tranlogs.cli.screen import to_json
from tranlogs.recovery.report import RecoveryReport

NOTE = Note("starts-over", "best starts over at each start", "To keep it: state = optimizer.remember(best=0)")


def test_a_note_is_its_text_and_tells_program_what_it_is() -> None:
    assert NOTE == "best starts over at each start. To keep it: state = optimizer.remember(best=0)"
    assert str(RecoveryReport(notes=(NOTE, Note("no-proof", "no unit")))).splitlines()[1:] == [f"  {NOTE}", "  no unit"]
    assert (NOTE.code, NOTE.sentence) == ("starts-over", "best starts over at each start")
    with pytest.raises(AttributeError):
        NOTE.code = "damaged"
    assert [note.code for note in coded("damaged", ["a checksum", NOTE])] == ["damaged", "starts-over"]


def test_a_note_stays_one_when_it_is_copied_recorded_or_printed_as_json() -> None:
    for again in (copy.deepcopy(NOTE), pickle.loads(pickle.dumps(NOTE)), Note(*NOTE.pack())):
        assert (again, again.pack()) == (NOTE, NOTE.pack())
    parts = {"code": "starts-over", "sentence": NOTE.sentence, "line": NOTE.line}
    report = RecoveryReport(notes=(NOTE,))
    assert to_json(report)["notes"] == json.loads(json.dumps(report.as_dict()))["notes"] == [parts]
