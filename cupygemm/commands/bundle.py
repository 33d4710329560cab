"""`cupygemm bundle`: bundles shown, checked and joined."""

from __future__ import annotations

from pathlib import Path

import click

from cupygemm.commands.options import PATH
from cupygemm.errors import BundleError
from cupygemm.text import count

MOST_FINDINGS = 5
"""Findings about a bundle that are spelt out in one line."""


@click.group("bundle")
def bundle_group() -> None:
    """Look at bundles of tuned configs."""


@bundle_group.command("show", short_help="Print a bundle; without a PATH the shipped one.")
@click.argument("path", required=False, type=PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bundle_show(path: Path | None, as_json: bool) -> None:
    """Print what a bundle holds; without a PATH the shipped one."""
    from cupygemm.bundles.bundle import Bundle
    from cupygemm.bundles.bundle_check import findings
    from cupygemm.bundles.in_force import shipped_bundle
    from cupygemm.commands import bundle_view
    from cupygemm.kernels.kernel_source import source_digest

    bundle = shipped_bundle() if path is None else Bundle.load(path)
    for line in [bundle_view.as_json(bundle)] if as_json else bundle_view.lines(bundle, source_digest):
        click.echo(line)
    if path is not None and (wrong := len(findings(bundle))):
        click.echo(f"{count(wrong, 'thing')} wrong with it: `cupygemm bundle validate {path}` says what", err=True)


@bundle_group.command("validate")
@click.argument("path", type=PATH)
def bundle_validate(path: Path) -> None:
    """Check a bundle; say what is wrong and where."""
    from cupygemm.bundles.bundle import Bundle
    from cupygemm.bundles.bundle_check import findings
    from cupygemm.kernels.kernel_source import source_digest

    bundle = Bundle.load(path)
    found = findings(bundle)
    if found:
        more = [f"and {len(found) - MOST_FINDINGS} more"] if len(found) > MOST_FINDINGS else []
        raise BundleError(f"{path}: {'; '.join(found[:MOST_FINDINGS] + more)}")
    click.echo(f"{path}: valid, {count(len(bundle.entries), 'entry', 'entries')}")
    outdated = [entry for entry in bundle.entries if bundle.outdated(entry, source_digest(entry.config))]
    if outdated:
        click.echo(
            f"{count(len(outdated), 'entry', 'entries')} measured with other kernel sources than those here: "
            "used all the same, and `cupygemm tune` on a Hopper GPU measures anew",
            err=True,
        )


@bundle_group.command("merge", short_help="Join bundles of one device.")
@click.argument("paths", metavar="BUNDLE...", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="Bundle to write.")
def bundle_merge(paths: tuple[Path, ...], output: Path) -> None:
    """Join bundles of one device; of two entries for a problem the one with the better speedup over cuBLAS stays.

    An entry that a replay was answered gives way to any that was measured.
    """
    from cupygemm.bundles.bundle import Bundle, merged_all

    bundle = merged_all({path: Bundle.load(path) for path in paths})
    bundle.save(output)
    click.echo(f"{output}: {count(len(bundle.entries), 'entry', 'entries')} of {count(len(paths), 'bundle')}")
