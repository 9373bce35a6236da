"""The engine that reads Kafka with Spark's connector, over Spark Connect."""
