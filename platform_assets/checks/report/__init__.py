"""How a check's verdict looks in Dagster: text, picture, table."""
