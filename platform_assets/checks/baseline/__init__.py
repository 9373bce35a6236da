"""Snapshots of a table's older windows, for checks."""
