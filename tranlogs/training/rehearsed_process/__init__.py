"""What a training process does if `tranlogs rehearse` has started it. Elsewhere it costs one look-up of a variable."""
