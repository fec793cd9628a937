"""`deepfish doctor`: what this machine has, and what is missing."""

from __future__ import annotations

from dataclasses import asdict

import typer

from deepfishing.cli.parameters import Json
from deepfishing.cli.say import say, say_json
from deepfishing.doctor import Finding, examine, is_broken


def doctor(as_json: Json = False) -> None:
    """Show what this machine has and what is missing, and the command that brings it.

    Example: deepfish doctor

    The exit code is 1 only if something that all commands need does not work.
    """
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            say(line_of(finding))
    broken = is_broken(findings)
    if as_json:
        facts = {"works": not broken, "findings": [asdict(finding) for finding in findings]}
        say_json(facts, indent=1)
    if broken:
        raise typer.Exit(1)


def line_of(finding: Finding) -> str:
    """A finding as people read it.

    >>> line_of(Finding("extra ray", "missing", "ray not installed", "pip install ray"))
    'missing  extra ray                    ray not installed: pip install ray'
    """
    fix = f": {finding.fix}" if finding.fix else ""
    return f"{finding.status:<8} {finding.name:<28} {finding.detail}{fix}"
