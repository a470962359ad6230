"""Writing of a journal's records to the log, and suspension of logging while the disk is full or fails."""
