"""The thread behind the log: it makes groups of records durable, and feeds the index and the catalog."""
