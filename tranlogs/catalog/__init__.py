"""The catalog: which segments, checkpoints and timelines a journal has, how far its watermarks are, who writes it."""

from .catalog import CATALOG_NAME, Catalog
from .rows import (
    CheckpointRow,
    EvaluationRow,
    Incident,
    PrunedRow,
    RunRow,
    SegmentRow,
    TimelineRow,
    Watermarks,
    evaluation_key,
    segment_key,
    timeline_key,
)
from .tables import Tables

__all__ = [
    "CATALOG_NAME", "Catalog", "CheckpointRow", "EvaluationRow", "Incident", "PrunedRow", "RunRow", "SegmentRow", "Tables",
    "TimelineRow", "Watermarks", "evaluation_key", "segment_key", "timeline_key",
]  # fmt: skip
