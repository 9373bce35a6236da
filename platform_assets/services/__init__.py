"""Embedded services: a real Kafka broker, a Spark Connect server and Dagster, on loopback, from pinned jars."""
