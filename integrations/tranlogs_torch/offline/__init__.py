"""A run without its training script: replayed, exported, compacted."""
