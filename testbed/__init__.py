"""Code that tests and benchmarks share: homes for services, a topic with its lake, and scripted ledgers and tables."""
