"""Demonstration of delivery semantics on three legs: producer to Kafka, Kafka to Kafka, and Kafka to the lake.

Each leg sends numbered records, crashes its programs according to a schedule, and compares what was sent with what
arrived. `recorded.json` has the results that README.md and docs/SEMANTICS.md show.
"""
