"""What a store holds of a journal: the manifest, its history, and which objects have become durable."""
