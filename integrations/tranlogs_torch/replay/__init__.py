"""Redo: logged steps are applied again."""
