"""terrace.AdamW and terrace.Adam: torch's face."""
