"""What lies in the bucket: keys, documents, and who owns the manifest of a step."""
