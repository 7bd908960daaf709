"""Nodes that know each other, so that a cluster reads each range of a restore from S3 once."""
