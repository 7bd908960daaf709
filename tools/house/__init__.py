"""What the house measures of itself: source lines, small modules, names, the way of a byte."""
