"""The errors that suspend logging."""

from __future__ import annotations

from ..base.errors import CorruptCatalog, LogUnavailable, UnencodableState

# Errors that suspend logging and let training continue. UnencodableState: a tracked object has changed since it was registered.
SUSPENDING_ERRORS = (LogUnavailable, CorruptCatalog, UnencodableState, MemoryError, OSError)
