"""zstd frames of one block each, and the seek table behind them: bounded both ways."""
