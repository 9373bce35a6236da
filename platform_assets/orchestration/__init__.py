"""Dagster integration: assets, sensors, resources, and records of runs."""
