"""The pages: facts about journals, filled into templates."""
