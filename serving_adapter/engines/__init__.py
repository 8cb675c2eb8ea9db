"""One folder per engine that the adapter is bound to."""
