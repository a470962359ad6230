"""What all integrations share: settings, resources, the step recorder, fingerprints, scans for foreign writes, random state."""
