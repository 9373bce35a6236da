"""The engine for decoded tables: Spark's Python workers read a raw window's files, decode the records, and write files
of two tables."""
