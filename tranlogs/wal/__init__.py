"""The write-ahead log on LMDB: segments, the writer, and a scanner that reads without LMDB."""
