"""What a step of Keras consumes, as a record of the log."""
