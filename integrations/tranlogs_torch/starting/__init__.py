"""A run that starts from something that is no run: weights, and what else a file or folder of another program holds.

settings.py      what the user says of it
source.py        a file or folder, and which parts of it are what; dcp.py, metadata.py, plain_pickle.py for folders
matching.py      which tensor of it belongs where, by name (pure)
load.py          into what the script has built; optimizer_state.py for optimizers
prepared.py      RUN/start, where `tranlogs import` puts it for a run that is yet to begin
survey.py        what `tranlogs import` says
"""

from __future__ import annotations

from pathlib import Path

from tranlogs.recovery.recover import Progress

from . import prepared
from .load import Built, load
from .metadata import METADATA
from .settings import StartFrom
from .source import read_parts

__all__ = ["Built", "Start", "StartFrom", "find_start"]


class Start:
    """What a run starts from: a source that the script names, or else what was imported into the run's folder.

    Args:
        run: the run's folder.
        given: what the script names; None for what was imported.
    """

    def __init__(self, run: Path, given: StartFrom | None) -> None:
        self._run, self._given = run, given

    @property
    def identity(self) -> str:
        """What tells it from another; empty where it is not there."""
        if self._given is None:
            return prepared.identity(self._run)
        path = Path(self._given.path)
        file = path / METADATA if path.is_dir() else path
        return f"{path.name}, {file.stat().st_size} bytes" if file.is_file() else ""

    def load(self, built: Built, progress: Progress | None = None) -> list[str]:
        """Load it into what was built; returns what was taken and what was left.

        Raises:
            UsageError: it cannot be read, or does not fit.
        """
        if self._given is None:
            return load(*prepared.read_prepared(self._run), built)
        parts = read_parts(Path(self._given.path), is_trusted=self._given.trust, progress=progress)
        return load(self._given, parts, built)


def find_start(run: Path, given: StartFrom | str | Path | None) -> Start | None:
    """What a run starts from, if it starts from anything: the script's word counts before what was imported."""
    if given is not None:
        return Start(run, given if isinstance(given, StartFrom) else StartFrom(given))
    return Start(run, None) if prepared.is_prepared(run) else None
