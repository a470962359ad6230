"""The processes that train together: who they are, what they tell each other, and how they divide the log."""
