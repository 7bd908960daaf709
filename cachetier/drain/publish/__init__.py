"""The documents of a save in the bucket: claim the step, write rank parts, publish, delete."""
