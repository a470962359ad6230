"""Output of the commands: tables for people, JSON for programs."""
