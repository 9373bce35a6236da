"""Access to brokers: topics, offsets, client settings, and raw record batches."""
