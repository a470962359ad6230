"""A training process that `tranlogs rehearse` has started. In other processes this costs one look-up of a variable."""
