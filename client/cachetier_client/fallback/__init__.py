"""What a client does while its service is away: wait, fail, or go straight to S3."""
