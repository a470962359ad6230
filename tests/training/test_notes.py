"""A note is a text with a code."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

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


SCRIPT = """
import logging, sys
import tranlogs
if sys.argv[1] == "configured":
    logging.basicConfig(format="%(name)s: %(message)s")
logging.getLogger("tranlogs.journal").warning("%s: the disk is full", "runs/a")
logging.getLogger("tranlogs").info("not shown")
logging.getLogger("other").warning("not ours")
"""


@pytest.mark.parametrize(
    ("logging_is", "shown"),
    [
        ("plain", ["TranLogs: runs/a: the disk is full", "not ours"]),
        ("configured", ["tranlogs.journal: runs/a: the disk is full"]),
    ],
)
def test_a_warning_names_us_where_logging_is_not_configured(logging_is: str, shown: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, logging_is], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[: len(shown)] == shown
    assert len(done.stderr.splitlines()) == 2
