"""A logged `model.fit`."""
