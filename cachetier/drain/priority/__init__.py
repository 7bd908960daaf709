"""The drain's priority below training: nice values, control groups, PSI and narrowing gates."""
