"""Several processes that share an optimizer's state."""
