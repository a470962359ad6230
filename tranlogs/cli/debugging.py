"""Whether `--debug` was given: an error then shows its traceback."""

is_enabled = False
