"""Dagster components: what a `defs.yaml` can declare."""

from platform_assets.components.topic_table import TopicTable

__all__ = ["TopicTable"]
