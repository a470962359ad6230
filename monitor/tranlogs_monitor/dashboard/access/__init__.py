"""Who may read the dashboard, and the address that it listens on."""
