"""Loads, decoding and audits on a Spark cluster: a master and two workers that share no disk except for the lake."""
