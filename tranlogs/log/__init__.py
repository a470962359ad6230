"""The write-ahead log: layouts and payloads, segment files, the writer, the rows of records and the scanner."""
