"""The position in the data: how `model.fit` is made to go on at a batch in the middle of an epoch."""
