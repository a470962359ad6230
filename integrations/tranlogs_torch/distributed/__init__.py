"""The processes that train together, and their messages to each other."""
