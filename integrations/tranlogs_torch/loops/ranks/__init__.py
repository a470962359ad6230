"""Agreement of the processes that train together: one protocol, for a group and for a single process."""
