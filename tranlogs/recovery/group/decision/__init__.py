"""The step from which a group resumes: pure decisions over summaries."""
