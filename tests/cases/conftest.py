"""Everything is as TranLogs has it by default."""

from tests.public.conftest import rechecks

__all__ = ["rechecks"]
