"""Summaries of journals: plain values that ranks exchange."""
