"""The sync thread of the log. It makes groups of records durable, and updates the catalog."""
