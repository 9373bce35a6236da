"""What tests and benchmarks both stand on: homes for services, a topic with its lake, ledgers and tables made by hand."""
