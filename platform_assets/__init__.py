"""Kafka topics to Delta tables as Dagster assets: exactly once by offset range, and provably so."""
