"""The S3 door: what programs that speak S3 put, read and list on this node."""
