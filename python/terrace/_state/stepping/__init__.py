"""When a step updates the parameters."""
