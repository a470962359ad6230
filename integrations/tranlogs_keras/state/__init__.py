"""What a Keras run consists of, described, read and restored."""
