"""Subcommands that run a training script."""
