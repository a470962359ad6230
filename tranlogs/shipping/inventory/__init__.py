"""What a store holds of a journal: the manifest, its history, and what has become durable."""
