"""The parts of a logged run that do not depend on how the training loop is written."""
