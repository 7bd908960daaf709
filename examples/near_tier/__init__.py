"""A near tier on a cluster that loses a server, for a node that is lost, while S3 is cut off.

``make near`` runs it; docs/remotes.md explains what it shows.
"""
