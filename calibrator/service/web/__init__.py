"""What operators touch: the REST API under /v1, metrics, health, and the dashboard."""
