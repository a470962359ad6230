"""What a PyTorch run consists of, described, read and restored."""
