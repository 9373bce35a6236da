"""Code shared by load, decode and merge jobs: the Spark session, jobs and their reports, digests, and writing of data files."""
