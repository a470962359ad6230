"""The monitor: a daemon that values and prunes the log of runs, and ships it. It talks to trainers through the catalog only."""
