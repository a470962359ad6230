"""What a step consumes, captured by hooks, and writes that no step made."""
