"""The dashboard: a small web server with the pages, the metrics for Prometheus, and rules for who may read them."""
