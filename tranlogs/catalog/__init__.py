"""The catalog of a journal: its segments, checkpoints, timelines and watermarks, and the run that it belongs to."""

from .catalog import CATALOG_NAME, Catalog
from .reopening import ReopeningCatalog
from .rows import (
    CheckpointRow,
    CommonRow,
    EvaluationRow,
    Incident,
    PrunedRow,
    RunRow,
    SegmentRow,
    ShippedRow,
    StoreRow,
    TimelineRow,
    Watermarks,
    evaluation_key,
    segment_key,
    timeline_key,
)
from .tables import Tables

__all__ = [
    "CATALOG_NAME",
    "Catalog",
    "CheckpointRow",
    "CommonRow",
    "EvaluationRow",
    "Incident",
    "PrunedRow",
    "ReopeningCatalog",
    "RunRow",
    "SegmentRow",
    "ShippedRow",
    "StoreRow",
    "Tables",
    "TimelineRow",
    "Watermarks",
    "evaluation_key",
    "segment_key",
    "timeline_key",
]
