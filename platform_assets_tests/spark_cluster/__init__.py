"""Loads, decoding and audits on a Spark cluster: a master and two workers, which share no disk except for the lake."""
