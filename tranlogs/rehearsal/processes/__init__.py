"""The processes of a rehearsal: where they work, how they are followed, and how all of them are ended."""
