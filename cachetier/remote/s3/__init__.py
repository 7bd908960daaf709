"""The remotes of S3, and of servers that speak its protocol. Nothing outside knows botocore.

``scheme`` is what the rest of the service sees of it; ``store`` makes the calls.
"""
