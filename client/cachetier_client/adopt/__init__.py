"""Steps that a trainer wrote as files: found, taken while they are whole, put and sealed."""
