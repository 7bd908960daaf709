"""The Helm chart: what of it is made from elsewhere (``chart``), and what real Helm says of it."""
