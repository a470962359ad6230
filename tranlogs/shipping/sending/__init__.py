"""To the store: what is sent next, and the threads that send it."""
