"""The catalog: which segments, checkpoints and timelines a journal has, how far its watermarks are, who writes it."""

from .catalog import CATALOG_NAME, Catalog
from .rows import CheckpointRow, Incident, RunRow, SegmentRow, TimelineRow, Watermarks, segment_key, timeline_key
from .tables import Tables

__all__ = [
    "CATALOG_NAME", "Catalog", "CheckpointRow", "Incident", "RunRow", "SegmentRow", "Tables", "TimelineRow", "Watermarks",
    "segment_key", "timeline_key",
]  # fmt: skip
