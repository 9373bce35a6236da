"""Measuring the speed of the platform and of its peers, in one run, with the same broker, data and machine (`make
bench`)."""
