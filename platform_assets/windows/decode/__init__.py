"""Decoding windows that are loaded, and what becomes of their dead letters."""
