"""A module for servers that fork: its import looks at the source of modules, so that none of the forked processes has to.

The variable LOOKED_AT names the modules.
"""

import importlib
import os

from tests.support import known_sources

known_sources.keep_sources()
known_sources.look_at(*map(importlib.import_module, os.environ["LOOKED_AT"].split()))
