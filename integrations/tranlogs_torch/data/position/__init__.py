"""The position in a DataLoader: how far a loop has come, and how it resumes at the exact next batch."""
