"""Pictures of one run: the degree to which each goal was reached, and costs by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_REACHED, _MISSED, _PLAIN = "#2a7f62", "#c8553d", "#5b7db1"


def draw(document: dict[str, Any], path: Path) -> None:
    """Write an SVG with one bar per goal. The length of each bar is the figure as a share of the goal's bound, so the
    bound is always at 1."""
    plt = _pyplot()
    goals = [(name, goal) for name, s in document["scenarios"].items() for goal in s["goals"]]
    if not goals:
        return
    labels = [f"{goal['what']}\n{goal['value']:,.2f} {goal['unit']}" for _, goal in goals]
    shares = [goal["bound"] / goal["value"] if goal["at_most"] else goal["value"] / goal["bound"] for _, goal in goals]
    colours = [_REACHED if goal["reached"] else _MISSED for _, goal in goals]
    figure, axes = plt.subplots(figsize=(10, 0.62 * len(goals) + 1.2))
    positions = range(len(goals))
    axes.barh(positions, shares, color=colours, height=0.6)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_yticks(positions, labels, fontsize=7)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("result as a share of the goal (1 is the goal; further right is better)")
    axes.set_title(f"{document['machine']['cores']} cores, {document['at'][:10]}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def draw_curves(document: dict[str, Any], path: Path) -> None:
    """Write an SVG that shows costs by size, with a panel for each curve that the scenarios measured."""
    plt = _pyplot()
    curves = {
        title: {float(size): value for size, value in points.items()}
        for s in document["scenarios"].values()
        for title, points in s.get("more", {}).get("curves", {}).items()
    }
    if not curves:
        return
    columns = 2
    rows = -(-len(curves) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(10, 2.7 * rows), squeeze=False)
    for axes, (title, points) in zip(grid.flat, curves.items(), strict=False):
        axes.plot(list(points), list(points.values()), marker="o", color=_PLAIN, linewidth=1.5)
        for size, value in points.items():
            axes.annotate(
                f"{value:,.4g}", (size, value), textcoords="offset points", xytext=(0, 6), fontsize=7, ha="center"
            )
        axes.set_xscale("log")
        axes.set_xticks(list(points), [f"{size:,.0f}" for size in points], fontsize=7)
        axes.minorticks_off()
        axes.set_ylim(0, max(points.values()) * 1.25)
        axes.tick_params(axis="y", labelsize=7)
        axes.set_title(title, fontsize=8)
    for axes in list(grid.flat)[len(curves) :]:
        axes.set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _pyplot() -> Any:
    """Return matplotlib, set up to draw without a screen. It is imported only when a picture is drawn."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot
