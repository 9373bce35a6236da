"""Dagster components, which define what a `defs.yaml` can declare."""

from platform_assets.components.derived_table import DerivedTable
from platform_assets.components.published_topic import PublishedTopic
from platform_assets.components.topic_table import TopicTable
from platform_assets.components.topic_tables import TopicTables

__all__ = ["DerivedTable", "PublishedTopic", "TopicTable", "TopicTables"]
