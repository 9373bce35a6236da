"""The engine that reads Kafka by Spark's connector, over Spark Connect."""
