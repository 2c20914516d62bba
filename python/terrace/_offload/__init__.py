"""Models whose parameters live below: terrace.offload."""
