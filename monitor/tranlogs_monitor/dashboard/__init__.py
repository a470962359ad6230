"""The dashboard: a small web server with pages for people, metrics for Prometheus, and rules for who may read them."""
