"""Access to the dashboard: who may read it, and the address on which it listens."""
