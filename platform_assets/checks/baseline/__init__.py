"""Snapshots of a table's older windows, which the checks use."""
