"""Parameters of which a process holds a part: FSDP, DTensor, ZeroRedundancyOptimizer."""
