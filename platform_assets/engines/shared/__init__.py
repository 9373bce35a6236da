"""Code that load, decode and merge jobs share: the Spark session, jobs and their reports, digests, and the writing of
data files."""
