"""A module for servers that fork: its import looks at the source of modules, so that none of the forked processes has to.

It comes last: what is in memory by then is put into huge pages. The variable LOOKED_AT names the modules.
"""

import importlib
import os

from tests.support import source_cache
from tests.support.huge_pages import collapse_memory

source_cache.keep_sources()
source_cache.look_at(*map(importlib.import_module, os.environ["LOOKED_AT"].split()))
collapse_memory()
