"""Speed of the platform and its peers, on the same broker, data and machine and in one run (`make bench`)."""
