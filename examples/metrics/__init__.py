"""Metrics: roll up events from minutes to hours and days, although some arrive late."""
