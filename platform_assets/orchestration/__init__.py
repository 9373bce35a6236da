"""Dagster: assets, sensors, resources, and what it knows of runs."""
