"""Presentation of a check result in Dagster: text, heatmap and table."""
