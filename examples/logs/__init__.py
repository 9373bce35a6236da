"""Log aggregation: patterns of lines, errors per service, and what is new."""
