"""Values by name on the page: bars of the present ones, and lines of chosen ones over the last seconds."""

from collections.abc import Sequence
from html import escape

import numpy as np
import viser
from viser import uplot

_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
_HEIGHT = 220
"""Height of a plot [pixels]."""
_ROW = (
    '<div style="display: flex; font-size: 0.75em; padding: 1px 1em; gap: 0.5em">'
    '<span style="flex: 3; overflow-wrap: anywhere">{name}</span>'
    '<span style="flex: 2; background: linear-gradient(90deg, transparent {low:.0%}, {colour} {low:.0%}, {colour} '
    '{high:.0%}, transparent {high:.0%}), #8883"></span>'
    '<span style="width: 6em; text-align: right">{value:.4g}</span></div>'
)


def bars(names: Sequence[str], values: np.ndarray, scales: np.ndarray) -> str:
    """Return HTML with a bar for each value, from the middle to the right if it is positive, else to the left.

    One that fills its half is as large as the scale. Shapes (number of names,).
    """
    parts = np.nan_to_num(values / np.where(scales > 0, scales, 1.0)).clip(-1, 1) / 2
    return "".join(
        _ROW.format(name=escape(name), value=value, low=0.5 + min(part, 0), high=0.5 + max(part, 0), colour=colour)
        for name, value, part, colour in zip(names, values, parts, _colours(len(names)), strict=True)
    )


class TermsTab:
    """Bars of all values, and a plot of those whose boxes are ticked."""

    def __init__(self, gui: viser.GuiApi, tab: viser.GuiTabHandle, names: Sequence[str], *, together: bool) -> None:
        """Add them to a tab. With `together`, all bars have the same scale."""
        self._gui, self._tab, self._names, self._together = gui, tab, names, together
        self._plot: viser.GuiUplotHandle | None = None
        self._plotted: list[int] = []
        with tab:
            self._bars = gui.add_html("", order=1)
            with gui.add_folder("Plotted", order=2):
                self._boxes = [gui.add_checkbox(name, initial_value=name == names[0]) for name in names]

    def show(self, history: np.ndarray, step_dt: float) -> None:
        """Show the values of the last steps, of `step_dt` each [s]. Shape (steps, number of names)."""
        if not len(history):
            history = np.zeros((1, len(self._names)))
        largest = np.abs(np.nan_to_num(history)).max(axis=0)
        scales = np.full_like(largest, largest.max()) if self._together else largest
        self._bars.content = bars(self._names, history[-1], scales)
        times = step_dt * np.arange(1 - len(history), 1)
        plotted = [index for index, box in enumerate(self._boxes) if box.value]
        data = (times.astype(np.float64), *history[:, plotted].T.astype(np.float64))
        if self._plot is not None and plotted == self._plotted:
            self._plot.data = data
            return
        if self._plot is not None:
            self._plot.remove()
        self._plotted = plotted
        self._plot = self._add_plot(data) if plotted else None

    def _add_plot(self, data: tuple[np.ndarray, ...]) -> viser.GuiUplotHandle:
        colours = _colours(len(self._names))
        series = [uplot.Series(label=self._names[index], stroke=colours[index], width=1.5) for index in self._plotted]
        with self._tab:
            return self._gui.add_uplot(
                data, (uplot.Series(label="s"), *series), scales={"x": uplot.Scale(time=False)}, height=_HEIGHT, order=0
            )


def _colours(number: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(number)]
