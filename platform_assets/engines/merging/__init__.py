"""Merging small files of flat tables, as tasks of Spark or in this process."""
