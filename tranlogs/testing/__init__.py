"""For tests and experiments only: a toy model without a framework, and ways to break files."""
