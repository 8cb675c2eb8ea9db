"""Figures that the API shows, read from the store: one module per resource, none of them knows of HTTP."""
