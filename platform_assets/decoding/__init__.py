"""Decoding of bytes to typed columns. Each format has one decoder, which is a pure function of a declaration and
values."""
