"""Fetching and parsing raw record batches without a consumer, for evidence and for loading."""
