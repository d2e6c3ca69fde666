"""What scripts see of a net: arrays, values on demand, the engine's lock."""
