"""How the processes that train together agree: one protocol, for a group and for a single process."""
