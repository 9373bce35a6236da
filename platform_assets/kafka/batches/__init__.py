"""Raw record batches: fetched and parsed without a consumer, for evidence and for loading."""
