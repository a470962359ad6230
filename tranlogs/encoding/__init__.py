"""Bytes: plain values (tree) and tensors (compression)."""
