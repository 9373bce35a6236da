"""Upkeep of tables: maintenance of their files between loads."""
