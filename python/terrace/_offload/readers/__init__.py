"""Readers reach a tensor's memory past the operations of torch."""
