"""The engine of decoded tables: Spark's Python workers read a raw window's files, decode them, and write files of two tables."""
