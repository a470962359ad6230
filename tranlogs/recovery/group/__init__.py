"""Recovery of ranks that train together: summaries of journals, agreement on one step, and each rank's way there."""
