"""Activity tracking: daily active users, sessions and a funnel, with exact distinct counts."""
