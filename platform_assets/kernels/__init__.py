"""Compiled loops over the bytes of record batches and over Arrow buffers."""
