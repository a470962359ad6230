"""A run without its training script: replayed and exported."""
