"""zstd frames of one block each, byte planes, and the seek table at an object's end. No I/O."""
