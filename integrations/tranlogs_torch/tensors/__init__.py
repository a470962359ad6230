"""Torch's tensors as the core's arrays, and their comparison bit for bit."""
