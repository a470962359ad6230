"""The catalog of a journal: its segments, checkpoints, timelines and watermarks, and the run that it belongs to."""

from .catalog import CATALOG_NAME, Catalog, ReopeningCatalog
from .requests import REQUESTS_NAME, drop_requests, serve_requests, write_request
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
    "REQUESTS_NAME",
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
    "drop_requests",
    "segment_key",
    "serve_requests",
    "timeline_key",
    "write_request",
]
