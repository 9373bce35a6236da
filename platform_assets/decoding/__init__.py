"""Decoding of bytes to typed columns: one decoder per format, each a pure function of a declaration and values."""
