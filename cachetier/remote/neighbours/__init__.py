"""The other nodes of the cluster: who they are, how they are asked, and the copies they keep."""
