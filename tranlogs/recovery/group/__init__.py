"""Recovery of ranks that train together: exchange of summaries, agreement on one boundary, and replay on each rank."""
