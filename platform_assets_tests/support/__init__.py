"""Code that tests share: services, samples, generators and checkers. Tests import from here and never from each other."""
