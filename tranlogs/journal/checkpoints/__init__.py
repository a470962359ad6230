"""When the journal takes a checkpoint, where the space for it comes from, and the thread that writes it."""
