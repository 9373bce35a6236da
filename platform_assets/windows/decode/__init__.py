"""Decoding loaded windows, and handling their dead letters."""
