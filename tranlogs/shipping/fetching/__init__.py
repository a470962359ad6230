"""Downloads: whole journals, and intact copies of damaged files."""
