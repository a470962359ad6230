"""Folders for the fits of copied callbacks, below the folder that was given.

A hyper-parameter search or a cross-validation copies one callback for many trainings. Each copy writes to
`<run>/<number>-<digest>`: the digest is that of the fit's identity, so that the same fit finds its folder again in a later
process, in whatever order the fits come.
"""

from __future__ import annotations

from pathlib import Path

_claimed: set[Path] = set()  # by this process; equal fits of one script take turns in the order of their numbers


def claim_folder(run: Path, digest: str) -> Path:
    """Return the folder of a fit below `run`; make it if there is none."""
    run.mkdir(parents=True, exist_ok=True)
    while True:
        numbers = _numbers(run)
        own = (path for number, path in sorted(numbers) if path.name == f"{number}-{digest}")
        folder = next((path for path in own if path.resolve() not in _claimed), None)
        if folder is None:
            folder = run / f"{max((number for number, _ in numbers), default=0) + 1}-{digest}"
            try:
                folder.mkdir()
            except FileExistsError:  # by another process
                continue
        _claimed.add(folder.resolve())
        return folder


def _numbers(run: Path) -> list[tuple[int, Path]]:
    split = [(path.name.partition("-")[0], path) for path in run.iterdir() if path.is_dir()]
    return [(int(number), path) for number, path in split if number.isdecimal()]
