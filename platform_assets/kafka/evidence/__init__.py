"""Evidence for every offset in a range, from the brokers' own record batches."""
