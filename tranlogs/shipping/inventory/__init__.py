"""Inventory of a journal in its store: the manifests, the durability of objects, and objects that can be deleted."""
