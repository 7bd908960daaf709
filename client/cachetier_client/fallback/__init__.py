"""The behaviour of a client while its service is away: wait, fail, or go straight to S3."""
