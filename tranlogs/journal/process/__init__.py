"""The end of the process that writes a journal: signals, and saving the log before the process ends."""
