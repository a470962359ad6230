"""Recovery of a run, the newest unit that is computed again, and the report of both."""
