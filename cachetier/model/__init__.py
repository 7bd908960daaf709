"""The rules, without I/O: names, levels, states, who may publish, where things lie in a bucket."""
