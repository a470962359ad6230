"""The gradients of a step: their bytes for the log, what the step does to them, and how they were clipped."""
