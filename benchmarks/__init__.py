"""Speed of the platform beside its peers: on the same broker, data and machine, in one run (`make bench`)."""
