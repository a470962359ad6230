"""One writer at a time: the lock of a journal, and taking it over from another process."""
