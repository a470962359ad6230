"""Comparison of a script that was killed with one that was not: runs, printed lines, files."""
