"""Evidence for every offset of a range, from the brokers' own record batches."""
