"""Notes on a recovery: messages for people, each with a code for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

# docs/operations.md has the meaning of each.
Code = Literal[
    "changed-after-recover",
    "damaged",
    "data-changed",
    "different",
    "environment",
    "left-out",
    "loaded-before",
    "loops-changed",
    "model-changed",
    "no-proof",
    "no-tensors",
    "not-recovered",
    "outside-loops",
    "proof-pending",
    "repaired",
    "replay-differs",
    "replay-sampled",
    "settings-changed",
    "starts-over",
    "steps-lost",
    "trained-again",
    "unfinished",
    "unknown-data",
]


class Note(str):
    """A message about a recovery. It is its text, which is printed, compared and searched like any other.

    Attributes:
        code: the kind of the message. It stays the same when the words change.
        sentence: what happened, or what is not known.
        line: what to do, mostly a line to add to the script; "" if there is nothing to do.
    """

    __slots__ = ("code", "line", "sentence")

    code: Code
    sentence: str
    line: str

    def __new__(cls, code: Code, sentence: str, line: str = "") -> Note:
        note = super().__new__(cls, f"{sentence}. {line}" if line else sentence)
        for name, value in (("code", code), ("sentence", sentence), ("line", line)):
            object.__setattr__(note, name, value)
        return note

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a note cannot be changed: {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Note, self.pack()

    def pack(self) -> tuple[Code, str, str]:
        """Return the note as plain values for a record: `Note(*packed)` is the note again."""
        return self.code, self.sentence, self.line

    def as_dict(self) -> dict[str, str]:
        """Return the note as plain values, for JSON."""
        return {"code": self.code, "sentence": self.sentence, "line": self.line}


def coded(code: Code, texts: Iterable[str]) -> list[Note]:
    """Return texts as notes with a code. Those that are notes keep theirs."""
    return [text if isinstance(text, Note) else Note(code, text) for text in texts]
