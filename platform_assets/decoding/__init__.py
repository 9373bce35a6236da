"""From bytes to typed columns: one decoder a format, pure functions of a declaration and of values."""
