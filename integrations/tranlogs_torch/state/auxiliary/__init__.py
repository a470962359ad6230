"""What the next batch needs and no step computes: tracked objects, positions in the data, random states, waiting gradients."""
