"""DeepSpeed's JSON."""
