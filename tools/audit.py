"""``make audit``: known vulnerabilities of all that is pinned, by pip-audit; never a false calm.

pip-audit passes over what its service does not know, and ends well where the service cannot be
asked. Here every requirement must have been looked up: else the audit says so, and fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKED = (
    "dev.txt",
    "frameworks.txt",
    "audit.txt",
    "helm.txt",
    "release.txt",
)  # service.txt and build.txt are parts of dev.txt
NOT_ASKED, FOUND = 2, 1


def main(command: Sequence[str]) -> int:
    """Run pip-audit, which ``command`` begins; return 0 if all was looked up and none is ill."""
    options = ("--disable-pip", "--require-hashes", "--format=json", "--progress-spinner=off")
    found, complaints = dict[str, Any](), ""
    for name in LOCKED:
        file = f"--requirement={ROOT / 'requirements' / name}"
        done = subprocess.run(
            (*command, *options, file), capture_output=True, text=True, check=False
        )
        try:
            report = json.loads(done.stdout)
        except ValueError:
            report, complaints = {}, complaints + done.stderr
        found |= {
            f"{each['name']} {each.get('version', '')}": each
            for each in report.get("dependencies", [])
        }
    text, code = judged(list(found.values()), complaints)
    sys.stderr.write(text)
    return code


def judged(found: Sequence[dict[str, Any]], complaint: str) -> tuple[str, int]:
    """Return what to say of pip-audit's reports, and how to end."""
    looked_up = [each for each in found if "skip_reason" not in each]
    skipped = [each for each in found if "skip_reason" in each]
    if complaint or not looked_up:
        why = complaint.strip()[-500:] or skipped[0]["skip_reason"]
        return (
            f"Error: no audit, as the vulnerability service did not answer: {why}\n"
            "Next: Run `make audit` where https://pypi.org can be reached, or with "
            "ARGS='--vulnerability-service osv' and https://api.osv.dev.\n"
        ), NOT_ASKED
    known = [
        f"{each['name']} {each['version']}: {found['id']}, mended in "
        f"{', '.join(found.get('fix_versions', ())) or 'no version yet'}"
        for each in looked_up
        for found in each["vulns"]
    ]
    lines = [f"{len(looked_up)} requirements audited, {len(known)} known vulnerabilities", *known]
    lines += [f"Error: not audited: {each['name']}: {each['skip_reason']}" for each in skipped]
    if known:
        lines.append("Next: Raise the version in pyproject.toml or requirements/*.in; `make lock`.")
    return "\n".join((*lines, "")), FOUND if known else NOT_ASKED if skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
