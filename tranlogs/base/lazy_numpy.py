"""numpy, imported when a name of it is first used: `tranlogs status` and `tranlogs log` mostly need none of it.

Modules that these two commands import write `from ..base import lazy_numpy as np`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        import numpy

        found = globals()[name] = getattr(numpy, name)
        return found
