"""The monitor: a daemon beside the trainers that values, prunes and watches. It talks to them through the catalog only."""
