"""A real Alluxio 2.9 cluster on the loopback addresses, from Maven Central's jars: no Docker, no root, nothing installed."""

from .cluster import Cluster
from .jars import Missing
from .settings import ROLES, Settings

__all__ = ["ROLES", "Cluster", "Missing", "Settings"]
