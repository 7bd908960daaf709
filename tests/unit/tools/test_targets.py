"""``make targets`` knows the targets; ``make frameworks`` says why something could not be had."""

from __future__ import annotations

from tools.frameworks import reason_of
from tools.targets import LONG, NEEDING, SERVING, SHORT, targets, variables

BUILD = """  error: subprocess-exited-with-error
  │ exit code: 1
      error: invalid command 'bdist_wheel'
error: metadata-generation-failed
hint: See above for details.
"""


def test_what_is_said_of_a_target_is_said_of_one_that_there_is() -> None:
    named = {*SHORT, *LONG, *SERVING, *NEEDING}
    assert named <= set(targets())
    assert targets()[-1] == "clean" and "targets" not in targets()


def test_what_make_targets_was_given_is_not_given_to_the_targets() -> None:
    told = {"MAKEFLAGS": r" -- ARGS=--long ONLY=demo\ site", "ONLY": "demo site", "ARGS": "--long"}
    assert variables({**told, "MAKELEVEL": "1", "PATH": "/bin", "AR": "ar"}) == {
        "PATH": "/bin",
        "AR": "ar",
    }


def test_why_something_cannot_be_installed_is_what_went_wrong_and_no_code_of_pip() -> None:
    assert reason_of(BUILD) == "error: invalid command 'bdist_wheel'"
    assert reason_of("ERROR: No matching distribution found for x\n").endswith("found for x")
    assert reason_of("it hangs\n") == "it hangs"
