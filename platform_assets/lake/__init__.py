"""The tables' Delta logs and files, read without Spark."""
