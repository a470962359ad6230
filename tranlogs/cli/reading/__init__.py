"""Reading of runs and journals without disturbing the process that writes them."""
