"""Runs a notebook in a kernel, and interrupts its training; needs nbclient. Prints a line for each thing that is found.

They are the number of plots, how the training ended, and the last iteration of the one that went on.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import nbformat  # pyright: ignore[reportMissingImports]
from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]
from nbclient.exceptions import CellExecutionError  # pyright: ignore[reportMissingImports]

notebook = nbformat.read(sys.argv[1], 4)
cells: list[Any] = [cell for cell in notebook.cells if cell.cell_type == "code"]
notebook.cells = cells
client = NotebookClient(notebook, timeout=600)
training = next(cell for cell in cells if "shoal.train(" in cell.source)
pictures: list[str] = []
ended = threading.Event()


def interrupt() -> None:
    """Press the interrupt button once the plot has changed twice."""
    while len(pictures) < 3 and not ended.wait(0.05):
        shown = [each.data.get("image/png", "") for each in training.outputs if "data" in each]
        pictures.extend(picture for picture in shown[:1] if picture not in pictures)
    asyncio.run(client.km.interrupt_kernel())


with client.setup_kernel():
    for number, cell in enumerate(cells):
        if cell is not training:
            client.execute_cell(cell, number)
            continue
        source = cell.source
        cell.source = source.replace("max_iterations=150", "num_envs=64, gpu_ids=None")
        button = threading.Thread(target=interrupt)
        button.start()
        try:
            client.execute_cell(cell, number)
        except CellExecutionError as error:
            sys.stdout.write(f"{len(pictures)}\n{error.evalue}\n")
            stopped = int(error.evalue.split("iteration ")[1].split(",")[0])
            cell.source = source.replace("max_iterations=150", f'resume="latest", max_iterations={stopped + 1}')
            client.execute_cell(cell, number)
        finally:
            ended.set()
            button.join()
    cell = nbformat.v4.new_code_cell('print(int(shoal.metrics(run)[-1]["iteration"]))')
    cells.append(cell)
    client.execute_cell(cell, len(cells) - 1)
    sys.stdout.write(cell.outputs[0].text)
