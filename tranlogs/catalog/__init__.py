"""The catalog: which segments, checkpoints and timelines a journal has, how far its watermarks are, who writes it."""

from .catalog import CATALOG_NAME, Catalog
from .reopening import FollowedCatalog
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
    "CATALOG_NAME", "Catalog", "CheckpointRow", "CommonRow", "EvaluationRow", "FollowedCatalog", "Incident", "PrunedRow",
    "RunRow", "SegmentRow", "ShippedRow", "StoreRow", "Tables", "TimelineRow", "Watermarks", "evaluation_key",
    "segment_key", "timeline_key",
]  # fmt: skip
