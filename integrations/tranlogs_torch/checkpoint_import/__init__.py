"""Start a run from weights, and whatever else a checkpoint of another program holds.

source.py           what to start from: a file or folder, read and sorted into parts
weights_only.py     torch.load, which executes nothing
dcp.py              folders of torch.distributed.checkpoint; dcp_metadata.py: their `.metadata`, a pickle
matching.py         which tensor of the source is which tensor of the model, by name (pure)
load.py             loads the parts into what the script has built; optimizer_state.py: the state of an optimizer
imported.py         `tranlogs import`, and RUN/start, where it stores a source for a run that has not begun
"""

from __future__ import annotations

from pathlib import Path

from tranlogs.training import Progress

from . import imported
from .dcp_metadata import METADATA
from .foreign_source import StartFrom, read_parts
from .load import Built, load

__all__ = ["Built", "Start", "StartFrom", "find_start"]


class Start:
    """The source that a run starts from.

    Args:
        run: the run's folder.
        given: the source that the script names; None for the one that was imported into the run's folder.
    """

    def __init__(self, run: Path, given: StartFrom | None) -> None:
        self._run, self._given = run, given

    @property
    def identity(self) -> str:
        """A text that differs between sources; empty if there is none. Ranks compare it."""
        if self._given is None:
            return imported.identity(self._run)
        path = Path(self._given.path)
        file = path / METADATA if path.is_dir() else path
        return f"{path.name}, {file.stat().st_size} bytes" if file.is_file() else ""

    def load(self, built: Built, progress: Progress | None = None) -> list[str]:
        """Load the source into what the script has built. Return one sentence each on what was loaded and what was not.

        Raises:
            UsageError: the source cannot be read, or does not fit.
        """
        if self._given is None:
            return load(*imported.read(self._run), built)
        parts = read_parts(Path(self._given.path), is_trusted=self._given.trust, progress=progress)
        return load(self._given, parts, built)


def find_start(run: Path, given: StartFrom | str | Path | None) -> Start | None:
    """Return the source that a run starts from, if there is one. The script's comes before the imported one."""
    if given is not None:
        return Start(run, given if isinstance(given, StartFrom) else StartFrom(given))
    return Start(run, None) if imported.is_stored(run) else None
