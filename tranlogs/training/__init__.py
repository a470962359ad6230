"""What all integrations share about a step: its plan, its record, fingerprints, and writes that no step made."""
