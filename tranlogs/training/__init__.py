"""What does not depend on a framework in logging a step: its record, fingerprints, looks for writes, random states."""
