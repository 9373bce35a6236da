"""Code shared by tests and benchmarks: homes for services, a topic with its lake, and scripted ledgers and tables."""
