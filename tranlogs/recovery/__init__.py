"""Recovery: read the facts, plan (pure), then replay through the protocol that each integration implements."""
