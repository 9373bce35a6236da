"""What the checks of a table remember of its older windows."""
