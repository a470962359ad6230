"""Objects that a script's loop holds: by their names, in containers, and iterators."""
