"""The state of a Keras run: described, read and restored."""
