"""The pages: facts of journals, filled into templates."""
