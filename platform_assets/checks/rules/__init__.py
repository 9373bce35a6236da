"""The checks of a table, one module per check."""
