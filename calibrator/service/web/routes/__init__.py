"""One file per resource of the API, each with a ``router``."""
