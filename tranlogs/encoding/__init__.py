"""Bytes: plain values (tree), tensors (compression), differences (delta), log entries (entry)."""
