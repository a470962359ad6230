"""From the store: whole journals, and sound copies of damaged files."""
