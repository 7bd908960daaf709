"""What storing the difference from the step before would save, on three real trainings.

::

    python -m benchmarks.differences DIRECTORY

It takes some ten minutes and 3.5 GB of ``DIRECTORY``, needs torch and scikit-learn, which the
benches do not install, and is no part of ``make bench``. Source: docs/design/0029-differences.md.
"""
