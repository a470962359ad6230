"""Recorded environment of a checkpoint or a segment: the processes that trained together (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Environment = Mapping[str, Any]


def get_world(environment: Environment) -> int:
    """Return the number of processes that trained together."""
    return int(environment.get("world", 1))


def get_first_timeline(environment: Environment) -> int:
    """Return the timeline that started the generation: with it, this number of processes began to train the run."""
    return int(environment.get("since", 1))


def get_copies(environment: Environment) -> int:
    """Return in how many journals each gradient shard lies."""
    return int(environment.get("ddp", {}).get("copies", 1))


def is_replicated(environment: Environment) -> bool:
    """Return True if weights and optimizer state were the same on all ranks, so that records may hold gradient shards."""
    return bool(environment.get("ddp", {}).get("is_divided"))


def is_sharded(environment: Environment) -> bool:
    """Return True if parameters were sharded over the ranks, so that each rank has a part."""
    return bool(environment.get("sharding"))


def is_of_group(environment: Environment) -> bool:
    """Return True if several processes trained the run with the same weights, in this generation or in an earlier one."""
    return is_replicated(environment) or get_first_timeline(environment) > 1
