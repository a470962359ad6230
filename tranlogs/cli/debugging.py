"""The option `--debug`: if it is enabled, an error shows its traceback."""

is_enabled = False
