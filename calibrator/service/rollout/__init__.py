"""Safe rollout: shadow, canary, all; promoted by evidence, taken back by itself."""
