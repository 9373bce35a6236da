"""Merging of small files of flat tables, in Spark tasks or in this process."""
