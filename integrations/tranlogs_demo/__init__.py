"""Demo of `tranlogs_torch`: train, die, recover, finish, and prove that nothing was lost.

`training` (a small GPT on the Python documentation) serves the benchmarks, too.
"""

from .demo import run_demo

__all__ = ["run_demo"]
