"""State that the next batch needs and no step computes: tracked objects, positions in data, random states, gradients."""
