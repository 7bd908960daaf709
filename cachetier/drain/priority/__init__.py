"""Stay behind training: what the kernel says of pressure, and how the drain gives way."""
