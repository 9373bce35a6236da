"""The columnar engine converts Kafka's record batches to Arrow columns, and these to Parquet files, inside Spark's
Python workers."""
