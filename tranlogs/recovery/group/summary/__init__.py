"""What one rank's journal holds, as plain values that ranks exchange."""
