"""Parameters of which a process holds a part: FSDP2 and DTensor."""
