"""The state of a PyTorch run: described, read and restored."""
