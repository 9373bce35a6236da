"""Snapshots of a table's older windows, used by checks."""
