"""A script that does not use TranLogs: what it loses today when it is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .comparison.text_lines import parse, split_lines
from .processes.process_life import Life

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".keras", ".h5", ".safetensors", ".npz", ".pkl", ".bin", ".index")


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a script that does not use TranLogs when it is killed.

    Attributes:
        headline: one sentence.
        notes: how this was found.
    """

    headline: str
    notes: list[str]


def judge_loss(first: Life, second: Life, written: Iterable[str], read: Iterable[str]) -> Loss:
    """Return the steps that were lost between a process that was killed and the next one. What they print decides first.

    Args:
        first: the life that was killed.
        second: the life after it, in the same folder.
        written: names of the files that the first life has left.
        read: names of those that the second one has read.
    """
    saved = sorted(name for name in written if Path(name).suffix in CHECKPOINTS)
    loaded = sorted(set(read) & set(saved))
    notes = [_describe_saved(saved, loaded)]
    before, after = split_lines(first.output), split_lines(second.output)
    place = _find_counter(before, after)
    if place is None:
        notes.append("nothing that it prints shows where it continues")
        lost = "at least what it has done since" if loaded else "all that it has done"
        return Loss(f"A kill costs this script {lost}: it does not use TranLogs.", notes)
    begin, end, again = place
    notes.append(f"before the kill it printed {begin!r} to {end!r}; started again, it begins with {again!r}")
    places = _read_counters([begin, end, again])
    if places[2] <= places[0]:
        notes += [f"reading {', '.join(loaded[:3])} does not make it continue"] if loaded else []
        return Loss("This script starts again from the beginning: a kill costs all that it has done.", notes)
    if places[2] <= places[1]:
        return Loss("This script continues from a checkpoint of its own: a kill costs what it has done since.", notes)
    return Loss("This script continues where it was killed, from a checkpoint of its own; whether exactly is not known.", notes)


def find_read(files: dict[str, Path], since_ns: int) -> list[str]:
    """Return the names of files that were read after a moment. File systems note it where a file has changed before."""
    return [name for name, path in files.items() if path.stat().st_atime_ns >= since_ns]


def _describe_saved(saved: list[str], loaded: list[str]) -> str:
    if not saved:
        return "it has written no file that looks like a checkpoint"
    if not loaded:
        return f"it has written {', '.join(saved[:3])}, and does not read it when it is started again"
    return f"it has written {', '.join(saved[:3])}, and reads {', '.join(loaded[:3])} when it is started again"


def _find_counter(before: list[str], after: list[str]) -> tuple[str, str, str] | None:
    """Return the first and the last line of the most frequent kind that begins with a rising number, and the first after."""
    kinds = Counter(parse(line)[0] for line in before if parse(line)[1])
    for text, _ in kinds.most_common():
        ours = [line for line in before if parse(line)[0] == text]
        theirs = [line for line in after if parse(line)[0] == text]
        if not theirs or len(ours) < 2:
            continue
        rising = _read_counters(ours)
        if rising == sorted(rising) and rising[0] < rising[-1]:
            return ours[0], ours[-1], theirs[0]
    return None


def _read_counters(lines: list[str]) -> list[tuple[float, ...]]:
    """Return the numbers that give the place of each line: the whole ones at its beginning, such as epoch and batch."""
    numbers = [parse(line)[1] for line in lines]
    whole = min(next((i for i, number in enumerate(found) if not _is_whole(number)), len(found)) for found in numbers)
    return [tuple(map(float, found[: max(1, whole)])) for found in numbers]


def _is_whole(number: str) -> bool:
    return number.lstrip("+-").isdigit()
