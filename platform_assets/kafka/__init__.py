"""Brokers: topics, offsets, client settings, and raw record batches."""
