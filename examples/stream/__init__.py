"""Stream processing: enrich, filter and aggregate by window, and publish the result to a topic, exactly once."""
