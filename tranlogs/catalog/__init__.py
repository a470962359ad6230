"""The catalog of a journal: its segments, checkpoints, timelines and watermarks, and the run that it belongs to."""

from .catalog import CATALOG_NAME, Catalog, ReopeningCatalog
from .rows import (
    CheckpointRow,
    CommonRow,
    Incident,
    MeasuredRow,
    PrunedRow,
    RunRow,
    SegmentRow,
    StoreRow,
    TimelineRow,
    Watermarks,
    segment_key,
    timeline_key,
)
from .tables import Change, Tables

__all__ = [
    "CATALOG_NAME",
    "Catalog",
    "Change",
    "CheckpointRow",
    "CommonRow",
    "Incident",
    "MeasuredRow",
    "PrunedRow",
    "ReopeningCatalog",
    "RunRow",
    "SegmentRow",
    "StoreRow",
    "Tables",
    "TimelineRow",
    "Watermarks",
    "segment_key",
    "timeline_key",
]
