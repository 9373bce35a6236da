"""The columnar engine: Kafka's record batches to Arrow columns to Parquet files, inside Spark's Python workers."""
