"""What became of every offset of a range, by the brokers' own record batches."""
