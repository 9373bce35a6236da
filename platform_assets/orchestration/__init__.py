"""Dagster integration: assets, sensors and resources, and queries for run records."""
