"""Checkpoints, and files of plain torch."""
