"""Objects of the S3 door on this node: taken in, given back, listed, and in which order shown."""
