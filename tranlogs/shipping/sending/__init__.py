"""Uploads: what to send next, and the threads that send it."""
