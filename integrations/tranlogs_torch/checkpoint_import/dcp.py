"""A folder of torch.distributed.checkpoint, read whole into one process, however many processes wrote it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from tranlogs.base.errors import UsageError
from tranlogs.training import Progress

from . import weights_only
from .dcp_metadata import METADATA, read_metadata


def read_folder(folder: Path, *, is_trusted: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Return the nest of dicts and lists that was saved.

    Args:
        folder: the checkpoint.
        is_trusted: True to execute whatever its pickles name.
        progress: called with what is done.

    Raises:
        UsageError: the folder is damaged, or holds what is not read without trust.
    """
    metadata = read_metadata(folder, is_trusted=is_trusted)
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, TensorStorageMetadata) else None
        for name, entry in metadata.state_dict_metadata.items()
    }
    reader, planner = FileSystemReader(folder), _Planner(state, is_trusted)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    planner.set_up_planner(state, metadata, is_coordinator=True)
    items = planner.create_local_plan().items
    for i, item in enumerate(items):  # one by one, so that an error can name its tensor; no process group takes part
        try:
            reader.read_data(LoadPlan([item]), planner).wait()
        except Exception as error:  # whatever torch makes of damaged bytes
            file = metadata.storage_data[item.storage_index].relative_path
            raise UsageError(f"{folder / file}: {item.dest_index.fqn}: {weights_only.reason(error)}") from None
        if progress is not None:
            progress("read", i + 1, len(items))
    return _nest(folder, metadata.planner_data, state)


class _Planner(DefaultLoadPlanner):
    """torch's planner, which by itself would load objects with weights_only=False."""

    def __init__(self, state: dict[str, Any], is_trusted: bool) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._state, self._is_trusted = state, is_trusted

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load an object."""
        self._state[read_item.dest_index.fqn] = (
            torch.load(value, map_location="cpu", weights_only=False) if self._is_trusted else weights_only.load(value)
        )


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value as it was saved. It may be a dict itself, unlike the dicts that are made for paths."""

    value: Any


def _nest(folder: Path, paths: Mapping[str, tuple[str | int, ...]], state: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str | int, Any] = {}
    for name, path in paths.items():
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, {})
            if isinstance(node, _Leaf):
                raise UsageError(f"{folder / METADATA}: {name} is nested in another value")
        if path[-1] in node:
            raise UsageError(f"{folder / METADATA}: {name} occurs twice")
        node[path[-1]] = _Leaf(state[name])
    return {str(key): _with_lists(folder, value) for key, value in root.items()}


def _with_lists(folder: Path, value: Any) -> Any:
    """Turn dicts whose keys are numbers into the lists that they were."""
    if isinstance(value, _Leaf):
        return value.value
    items = {key: _with_lists(folder, item) for key, item in value.items()}
    if not any(isinstance(key, int) for key in items):
        return items
    if set(items) != set(range(len(items))):
        raise UsageError(f"{folder / METADATA}: a list lacks some of its items")
    return [items[i] for i in range(len(items))]
