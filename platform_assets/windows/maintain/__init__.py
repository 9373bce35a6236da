"""Upkeep of tables: what happens to their files between loads."""
