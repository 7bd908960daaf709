"""The bucket's format: keys, documents, and the rules of who owns a step's manifest."""
