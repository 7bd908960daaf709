"""Names and addresses; which save this is, on which rank of which job."""
