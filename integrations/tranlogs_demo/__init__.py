"""Demo of `tranlogs_torch`: train, die, recover, finish, and prove that nothing was lost.

`model` and `text` (a small GPT on the Python documentation) serve the benchmarks, too.
"""

from .story import run_demo

__all__ = ["run_demo"]
