"""How the journal hands records to the log, and what it does while the disk refuses them."""
