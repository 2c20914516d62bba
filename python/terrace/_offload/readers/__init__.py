"""What reads a tensor's memory past the operations of torch."""
