"""Dagster integration: assets, sensors, resources, and queries of run records."""
