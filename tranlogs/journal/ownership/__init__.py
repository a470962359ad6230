"""The lock of a journal, which allows one writer at a time, and how another process takes it over."""
