"""expunge."""
