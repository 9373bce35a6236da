"""Decoding of bytes to typed columns: one decoder for each format, which is a pure function of a declaration and
values."""
