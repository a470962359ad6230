"""The journal and its process: one writer at a time, taking over from another one, and an orderly end."""
