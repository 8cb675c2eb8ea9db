"""What runs beside the engine: event ring, parameter mirror, sidecar loops, engine bindings."""
