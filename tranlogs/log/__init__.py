"""The write-ahead log: layouts and payloads, segment files, the writer, the index and the scanner."""
