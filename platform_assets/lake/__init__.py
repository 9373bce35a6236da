"""Access to the tables' Delta logs and files without Spark."""
