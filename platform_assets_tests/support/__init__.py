"""Code that tests share: services, samples, generators and checkers. Tests import from here, never from other tests."""
