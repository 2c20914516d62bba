"""Tensors of a program that are watched, and not kept."""
